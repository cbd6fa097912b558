// The Boost.Context peer, written the way its users write it: boost::context::fiber with a pooled stack.
// Each function does n rounds of one thing; the caller takes the time, except where not all of it counts.

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ctx = boost::context;

namespace {

constexpr std::size_t stack_size = 64 * 1024;

template <typename Stacks>
ctx::fiber endless(Stacks stacks) {
    return ctx::fiber{std::allocator_arg, std::move(stacks), [](ctx::fiber&& resumer) {
                          for (;;) resumer = std::move(resumer).resume();
                          return std::move(resumer);
                      }};
}

}  // namespace

extern "C" {

// n rounds of resume and suspend over each of `count` fibers.
void boost_round_trips(std::uint64_t n, std::size_t count) {
    static ctx::pooled_fixedsize_stack stacks{stack_size};
    static std::vector<ctx::fiber> fibers;
    while (fibers.size() < count) fibers.push_back(endless(stacks));
    for (std::uint64_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < count; ++j) fibers[j] = std::move(fibers[j]).resume();
}

// n times: make a fiber on a pooled stack, run it to its end, drop it.
void boost_create(std::uint64_t n) {
    static ctx::pooled_fixedsize_stack stacks{stack_size};
    for (std::uint64_t i = 0; i < n; ++i) {
        ctx::fiber fiber{std::allocator_arg, ctx::pooled_fixedsize_stack{stacks}, [](ctx::fiber&& resumer) { return std::move(resumer); }};
        std::move(fiber).resume();
    }
}

// Makes `count` fibers on guarded stacks that are mapped for them, and runs each to its first suspension. Returns the nanoseconds for
// all, without those for dropping them.
std::uint64_t boost_fresh(std::size_t count) {
    std::vector<ctx::fiber> fibers;
    fibers.reserve(count);
    auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < count; ++i)
        fibers.push_back(endless(ctx::protected_fixedsize_stack{stack_size}).resume());
    auto time = std::chrono::steady_clock::now() - start;
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // extern "C"
