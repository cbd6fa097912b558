/* Exceptions of C++ that are caught across waits: which one is being handled is a thread-local of its library. */

#include <exception>
#include <stdexcept>
#include <string>

struct Waits {
    void (*wait)(int);
    ~Waits() { wait(1); }
};

extern "C" int handle(void (*wait)(int), int number)
{
    int right = 0;
    for (int round = 0; round < 10; round++) {
        int value = number * 100 + round;
        try {
            Waits while_unwinding{wait};
            throw std::runtime_error(std::to_string(value));
        } catch (const std::exception &outer) {
            wait(round);
            try {
                throw value;
            } catch (int inner) {
                wait(round + 1);
                try {
                    throw; /* the one that is being handled */
                } catch (int again) {
                    right += again == value && inner == value;
                } catch (...) {
                }
            }
            try {
                throw;
            } catch (const std::runtime_error &again) {
                right += again.what() == std::to_string(value) && &again == &outer;
            } catch (...) {
            }
        }
        right += std::uncaught_exceptions() == 0 && !std::current_exception();
    }
    return right;
}
