// A program with three runtimes in it: that of C++, fibrant's copy of Rust's, and that of neighbour.rs. Exceptions and panics find the
// handlers of their own.
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <unistd.h>

extern "C" int neighbour(int number);

namespace {

struct Witness {
    ~Witness() { std::cout << "destroyed\n"; }
};

void read_nothing()
{
    Witness witness;
    char byte;
    if (read(-1, &byte, 1) < 0)
        throw std::runtime_error("nothing to read");
}

} // namespace

int main()
{
    std::mutex mutex;
    try {
        std::lock_guard<std::mutex> guard(mutex);
        read_nothing();
    } catch (const std::exception &error) {
        std::cout << error.what() << "\n";
    }
    std::thread([] {
        try {
            throw 1;
        } catch (int) {
            std::cout << "caught in a thread\n";
        }
    }).join();
    std::cout << neighbour(1) << " " << neighbour(3) << "\n";
    return mutex.try_lock() ? 0 : 1;
}
