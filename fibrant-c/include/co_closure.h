/*
 * Closures for C++: a body of code with copies of up to seven variables, as an object that others can execute later.
 *
 *     co_ref(shared, total, mutex);       an object with references to variables: shared.total, shared.mutex
 *     co_func(Task, shared, i)            a class with copies of variables: inside, shared and i are its own
 *     {
 *         shared.total += i;
 *     }
 *     co_func_end;
 *     stCoClosure_t *task = new Task(shared, i);
 *     task->exec();
 *     delete task;
 *
 * Newer programs write lambdas instead.
 */

#ifndef FIBRANT_CO_CLOSURE_H
#define FIBRANT_CO_CLOSURE_H

#ifdef __cplusplus

struct stCoClosure_t {
	virtual void exec() = 0;
	virtual ~stCoClosure_t() {}
};

/* How many arguments there are, 1 to 8. */
#define FIBRANT_CO_COUNT(...) FIBRANT_CO_NINTH(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, none)
#define FIBRANT_CO_NINTH(a, b, c, d, e, f, g, h, n, ...) n

/* The macro `stem_n`, by the value of n. */
#define FIBRANT_CO_PICK(stem, n) FIBRANT_CO_GLUE(stem, n)
#define FIBRANT_CO_GLUE(stem, n) stem##_##n

/* m for each argument, one after another; and the same with commas between. */
#define FIBRANT_CO_EACH_1(m, a) m(a)
#define FIBRANT_CO_EACH_2(m, a, b) m(a) m(b)
#define FIBRANT_CO_EACH_3(m, a, b, c) m(a) m(b) m(c)
#define FIBRANT_CO_EACH_4(m, a, b, c, d) m(a) m(b) m(c) m(d)
#define FIBRANT_CO_EACH_5(m, a, b, c, d, e) m(a) m(b) m(c) m(d) m(e)
#define FIBRANT_CO_EACH_6(m, a, b, c, d, e, f) m(a) m(b) m(c) m(d) m(e) m(f)
#define FIBRANT_CO_EACH_7(m, a, b, c, d, e, f, g) m(a) m(b) m(c) m(d) m(e) m(f) m(g)
#define FIBRANT_CO_LIST_1(m, a) m(a)
#define FIBRANT_CO_LIST_2(m, a, b) m(a), m(b)
#define FIBRANT_CO_LIST_3(m, a, b, c) m(a), m(b), m(c)
#define FIBRANT_CO_LIST_4(m, a, b, c, d) m(a), m(b), m(c), m(d)
#define FIBRANT_CO_LIST_5(m, a, b, c, d, e) m(a), m(b), m(c), m(d), m(e)
#define FIBRANT_CO_LIST_6(m, a, b, c, d, e, f) m(a), m(b), m(c), m(d), m(e), m(f)
#define FIBRANT_CO_LIST_7(m, a, b, c, d, e, f, g) m(a), m(b), m(c), m(d), m(e), m(f), m(g)

/*
 * The types have names of their own because a class cannot ask for the type of a variable that its member is named after. (And
 * not decltype: the type of what a reference refers to is wanted, and of old compilers no more than this.)
 */
#define FIBRANT_CO_TYPE(v) typedef __typeof__(v) typeof_##v;
#define FIBRANT_CO_REFERENCE(v) typeof_##v &v;
#define FIBRANT_CO_COPY(v) typeof_##v v;
#define FIBRANT_CO_PARAMETER(v) typeof_##v &fibrant_##v
#define FIBRANT_CO_INITIAL(v) v(fibrant_##v)

#define FIBRANT_CO_REF(n, name, ...)                                                               \
	FIBRANT_CO_PICK(FIBRANT_CO_EACH, n)(FIBRANT_CO_TYPE, __VA_ARGS__)                              \
	class type_##name {                                                                            \
	public:                                                                                        \
		FIBRANT_CO_PICK(FIBRANT_CO_EACH, n)(FIBRANT_CO_REFERENCE, __VA_ARGS__)                     \
		type_##name(FIBRANT_CO_PICK(FIBRANT_CO_LIST, n)(FIBRANT_CO_PARAMETER, __VA_ARGS__))        \
			: FIBRANT_CO_PICK(FIBRANT_CO_LIST, n)(FIBRANT_CO_INITIAL, __VA_ARGS__) {}              \
	} name(__VA_ARGS__);

#define FIBRANT_CO_FUNC(n, name, ...)                                                              \
	FIBRANT_CO_PICK(FIBRANT_CO_EACH, n)(FIBRANT_CO_TYPE, __VA_ARGS__)                              \
	class name : public stCoClosure_t {                                                            \
	public:                                                                                        \
		FIBRANT_CO_PICK(FIBRANT_CO_EACH, n)(FIBRANT_CO_COPY, __VA_ARGS__)                          \
		name(FIBRANT_CO_PICK(FIBRANT_CO_LIST, n)(FIBRANT_CO_PARAMETER, __VA_ARGS__))               \
			: FIBRANT_CO_PICK(FIBRANT_CO_LIST, n)(FIBRANT_CO_INITIAL, __VA_ARGS__) {}              \
		void exec()

/* A function without captured variables needs no `...` of its own: strict compilers want an argument for one. */
#define FIBRANT_CO_FUNC_1(name)                                                                    \
	class name : public stCoClosure_t {                                                            \
	public:                                                                                        \
		void exec()
#define FIBRANT_CO_FUNC_2(name, ...) FIBRANT_CO_FUNC(1, name, __VA_ARGS__)
#define FIBRANT_CO_FUNC_3(name, ...) FIBRANT_CO_FUNC(2, name, __VA_ARGS__)
#define FIBRANT_CO_FUNC_4(name, ...) FIBRANT_CO_FUNC(3, name, __VA_ARGS__)
#define FIBRANT_CO_FUNC_5(name, ...) FIBRANT_CO_FUNC(4, name, __VA_ARGS__)
#define FIBRANT_CO_FUNC_6(name, ...) FIBRANT_CO_FUNC(5, name, __VA_ARGS__)
#define FIBRANT_CO_FUNC_7(name, ...) FIBRANT_CO_FUNC(6, name, __VA_ARGS__)
#define FIBRANT_CO_FUNC_8(name, ...) FIBRANT_CO_FUNC(7, name, __VA_ARGS__)

/* The object `name` with a reference to each of the variables that follow. */
#define co_ref(name, ...) FIBRANT_CO_REF(FIBRANT_CO_COUNT(__VA_ARGS__), name, __VA_ARGS__)

/* The class whose name comes first, with a copy of each of the variables that follow; then its body, then co_func_end. */
#define co_func(...) FIBRANT_CO_PICK(FIBRANT_CO_FUNC, FIBRANT_CO_COUNT(__VA_ARGS__))(__VA_ARGS__)
#define co_func_end }

#endif

#endif
