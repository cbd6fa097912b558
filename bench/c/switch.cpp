// co_resume and co_yield_ct, over one coroutine and over 1,000 in turn; in between, the same with Boost.Context: its bare jump, and its
// fibers. (`-DBOOST=0` leaves that out.) C++ for Boost's sake.

#include "figures.h"

#include <co_routine.h>

#include <cstddef>
#include <vector>

#ifndef BOOST
#define BOOST 1
#endif

#if BOOST
#include <boost/context/detail/fcontext.hpp>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#endif

namespace {

constexpr int stack_size = 64 * 1024;
constexpr std::size_t many = 1000;
constexpr long switches = 5000000;
constexpr int rounds = 3;

// The time for each, if all of `count` are resumed in turn; `count` divides the number of switches.
template <typename Resume> double each(std::size_t count, Resume resume) {
    const double start = nanoseconds();
    for (long turn = switches / static_cast<long>(count); turn > 0; --turn)
        for (std::size_t index = 0; index < count; ++index) resume(index);
    return (nanoseconds() - start) / switches;
}

// Both figures; the first turn over all of them is not counted.
template <typename Resume> void measure(const char *program, Resume resume) {
    for (std::size_t index = 0; index < many; ++index) resume(index);
    figure(program, "c_switch", "one", each(1, resume), "ns");
    figure(program, "c_switch", "of 1,000", each(many, resume), "ns");
}

void *endless(void *) {
    for (;;) co_yield_ct();
}

#if BOOST
namespace boosts = boost::context;

void endless_jumps(boosts::detail::transfer_t resumer) {
    for (;;) resumer = boosts::detail::jump_fcontext(resumer.fctx, nullptr);
}
#endif

} // namespace

int main() {
    std::vector<stCoRoutine_t *> coroutines(many);
    stCoRoutineAttr_t attributes;
    attributes.stack_size = stack_size;
    for (auto &one : coroutines) require(co_create(&one, &attributes, endless, nullptr) == 0, "co_create");
#if BOOST
    std::vector<boosts::detail::fcontext_t> contexts(many);
    std::vector<boosts::fiber> fibers(many);
    boosts::fixedsize_stack stacks{stack_size};
    for (std::size_t index = 0; index < many; ++index) {
        const boosts::stack_context stack = stacks.allocate();
        // Staggered, as ours are: tops at the same place in their pages would compete for the same lines of the cache.
        char *const top = static_cast<char *>(stack.sp) - index % 16 * 128;
        contexts[index] = boosts::detail::make_fcontext(top, stack.size, endless_jumps);
    }
    for (auto &one : fibers)
        one = boosts::fiber{std::allocator_arg, stacks, [](boosts::fiber &&resumer) {
                                for (;;) resumer = std::move(resumer).resume();
                                return std::move(resumer);
                            }};
#endif
    for (int round = 0; round < rounds; ++round) {
        measure("coroutines", [&](std::size_t index) { co_resume(coroutines[index]); });
#if BOOST
        measure("boost_jump", [&](std::size_t index) {
            contexts[index] = boosts::detail::jump_fcontext(contexts[index], nullptr).fctx;
        });
        measure("boost_fiber", [&](std::size_t index) { fibers[index] = std::move(fibers[index]).resume(); });
#endif
    }
    for (auto one : coroutines) co_release(one);
    // Boost's are left to the process's end: an endless fiber cannot be unwound.
    _Exit(0);
}
