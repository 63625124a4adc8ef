/* SPDX-License-Identifier: Apache-2.0 */
/* A virtual kernel: threads are coroutines that change hands only where the product blocks, and time stands still
 * while anything can run. The stepping thread is the program's own; the product's threads run while it blocks. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#include "sim.h"

enum { THREADS_MAX = 32, STACK_BYTES = 256 << 10, EVENTS_MAX = 1 << 16, CLOCK_READ_NS = 17 };

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *at, struct timespec *left);
long __wrap_syscall(long number, ...);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*entry)(void *), void *argument);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
void __real_st_readers_notify(struct st_core *core, uint32_t count);
void __wrap_st_readers_notify(struct st_core *core, uint32_t count);

/* ---- drawn numbers ---- */

static uint64_t random_state, digest;

void sim_seed(uint64_t seed) {
    random_state = seed;
}

uint64_t sim_random(void) {
    uint64_t x = random_state += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

uint64_t sim_below(uint64_t limit) {
    return sim_random() % limit;
}

int sim_chance(uint32_t one_in) {
    return sim_below(one_in) == 0;
}

void sim_note(uint64_t what) {
    digest = (digest ^ what) * 0x100000001B3ull;
    digest ^= digest >> 29;
}

uint64_t sim_digest(void) {
    return digest;
}

void sim_digest_reset(uint64_t value) {
    digest = value;
}

/* ---- events: a heap by time, then by order of arrival ---- */

typedef struct event {
    uint64_t due_ns, order;
    void (*fire)(void *);
    void *context;
} event;

static event events[EVENTS_MAX];
static uint32_t event_count;
#define START_NS 1000000000u
static uint64_t now_ns = START_NS, order;

static int earlier(const event *a, const event *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

void sim_at(uint64_t due_ns, void (*fire)(void *), void *context) {
    if (event_count == EVENTS_MAX)
        sim_fail("more than %d events at once", EVENTS_MAX);
    event added = {due_ns, ++order, fire, context};
    uint32_t at = event_count++;
    for (; at && earlier(&added, &events[(at - 1) / 2]); at = (at - 1) / 2)
        events[at] = events[(at - 1) / 2];
    events[at] = added;
}

static event event_take(void) {
    event first = events[0], last = events[--event_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < event_count && earlier(&events[child + 1], &events[child]))
            child++;
        if (child >= event_count || !earlier(&events[child], &last))
            break;
        events[at] = events[child];
        at = child;
    }
    events[at] = last;
    return first;
}

/* ---- coroutines ---- */

typedef struct coroutine {
    enum { FREE, RUNNABLE, BLOCKED, ENDED } state;
    ucontext_t context;
    uint8_t *stack;
    void *(*entry)(void *);
    void *argument;
    int (*ready)(void *);
    void *ready_context;
    uint64_t until_ns;
    int woken_in_time;
} coroutine;

static coroutine threads[THREADS_MAX];
static coroutine *running; /* NULL: the stepping thread, which is the scheduler */
static ucontext_t scheduler;

uint64_t sim_now(void) {
    return now_ns;
}

static void switch_to(coroutine *thread) {
    running = thread;
    swapcontext(&scheduler, &thread->context);
    running = NULL;
}

static void yield(void) {
    swapcontext(&running->context, &scheduler);
}

static void check_blocked(void) {
    for (uint32_t i = 0; i < THREADS_MAX; i++) {
        coroutine *thread = &threads[i];
        if (thread->state != BLOCKED)
            continue;
        thread->woken_in_time = thread->ready(thread->ready_context);
        if (thread->woken_in_time || now_ns >= thread->until_ns)
            thread->state = RUNNABLE;
    }
}

static coroutine *any_runnable(void) {
    uint32_t start = (uint32_t)sim_below(THREADS_MAX);
    for (uint32_t i = 0; i < THREADS_MAX; i++)
        if (threads[(start + i) % THREADS_MAX].state == RUNNABLE)
            return &threads[(start + i) % THREADS_MAX];
    return NULL;
}

/* When the clock has to stop at the latest, with nothing to run. */
static uint64_t next_instant(void) {
    uint64_t next = event_count ? events[0].due_ns : SIM_NEVER;
    for (uint32_t i = 0; i < THREADS_MAX; i++)
        if (threads[i].state == BLOCKED && threads[i].until_ns < next)
            next = threads[i].until_ns;
    return next;
}

/* One thing happens: a coroutine runs until it blocks, or the clock moves on to the next event. 0: nothing can, before
 * limit_ns. */
static int turn(uint64_t limit_ns) {
    check_blocked();
    coroutine *thread = any_runnable();
    int due = event_count && events[0].due_ns <= now_ns;
    if (thread && !(due && sim_chance(3))) {
        switch_to(thread);
        return 1;
    }
    uint64_t next = next_instant();
    if (next > limit_ns || next == SIM_NEVER)
        return 0;
    if (next > now_ns)
        now_ns = next;
    if (event_count && events[0].due_ns <= now_ns) {
        event first = event_take();
        first.fire(first.context);
    }
    return 1;
}

int sim_block(int (*ready)(void *), void *context, uint64_t until_ns) {
    if (ready(context))
        return 1;
    if (running) {
        running->ready = ready;
        running->ready_context = context;
        running->until_ns = until_ns;
        running->state = BLOCKED;
        yield();
        return running->woken_in_time;
    }
    do {
        if (now_ns >= until_ns)
            return 0;
        if (turn(until_ns))
            continue;
        if (until_ns == SIM_NEVER)
            sim_fail("hang: the stepping thread waits, nothing runs and nothing is due");
        now_ns = until_ns;
    } while (!ready(context));
    return 1;
}

void sim_interleave(uint32_t turns) {
    while (turns-- && turn(now_ns))
        ;
}

void sim_rewind(void) {
    while (turn(SIM_NEVER))
        ;
    now_ns = START_NS;
    order = 0;
}

static int never(void *context) {
    return 0;
}

void sim_sleep(uint64_t ns) {
    sim_block(never, NULL, now_ns + ns);
}

/* ---- what the product calls ---- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    now_ns += CLOCK_READ_NS;
    *out = (struct timespec){(time_t)(now_ns / 1000000000u), (long)(now_ns % 1000000000u)};
    return 0;
}

int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *at, struct timespec *left) {
    uint64_t ns = (uint64_t)at->tv_sec * 1000000000u + (uint64_t)at->tv_nsec;
    sim_block(never, NULL, flags & TIMER_ABSTIME ? ns : now_ns + ns);
    return 0;
}

typedef struct futex_waiter {
    uint32_t *word;
    int woken;
    struct futex_waiter *next;
} futex_waiter;
static futex_waiter *waiters;

static int futex_ready(void *context) {
    return ((futex_waiter *)context)->woken;
}

static long futex_wait(uint32_t *word, uint32_t value, const struct timespec *timeout) {
    if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value || sim_chance(64)) /* the kernel may wake anyone any time */
        return -1;
    uint64_t until_ns =
        timeout ? now_ns + (uint64_t)timeout->tv_sec * 1000000000u + (uint64_t)timeout->tv_nsec : SIM_NEVER;
    futex_waiter waiter = {.word = word, .next = waiters};
    waiters = &waiter;
    int woken = sim_block(futex_ready, &waiter, until_ns);
    futex_waiter **at = &waiters;
    while (*at != &waiter)
        at = &(*at)->next;
    *at = waiter.next;
    return woken ? 0 : -1;
}

static long futex_wake(const uint32_t *word, uint32_t count) {
    long woken = 0;
    for (futex_waiter *waiter = waiters; waiter && count; waiter = waiter->next) {
        if (waiter->word != word || waiter->woken)
            continue;
        waiter->woken = 1;
        woken++;
        count--;
    }
    return woken;
}

long __wrap_syscall(long number, ...) {
    va_list rest;
    va_start(rest, number);
    uint32_t *word = va_arg(rest, uint32_t *);
    int operation = va_arg(rest, int);
    uint32_t value = va_arg(rest, uint32_t);
    const struct timespec *timeout = va_arg(rest, const struct timespec *);
    va_end(rest);
    if (number != SYS_futex)
        sim_fail("system call %ld is not simulated", number);
    switch (operation) {
    case FUTEX_WAIT_PRIVATE: return futex_wait(word, value, timeout);
    case FUTEX_WAKE_PRIVATE: return futex_wake(word, value);
    }
    sim_fail("futex operation %d is not simulated", operation);
}

static void coroutine_main(unsigned index) {
    coroutine *self = &threads[index];
    self->entry(self->argument);
    self->state = ENDED;
    yield();
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*entry)(void *), void *argument) {
    uint32_t index = 0;
    while (index < THREADS_MAX && threads[index].state != FREE)
        index++;
    if (index == THREADS_MAX)
        return EAGAIN;
    coroutine *made = &threads[index];
    uint8_t *stack = made->stack ? made->stack : malloc(STACK_BYTES);
    *made = (coroutine){.stack = stack, .entry = entry, .argument = argument, .until_ns = SIM_NEVER};
    getcontext(&made->context);
    made->context.uc_stack.ss_sp = stack;
    made->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&made->context, (void (*)(void))coroutine_main, 1, index);
    made->state = RUNNABLE;
    *thread = (pthread_t)index;
    return 0;
}

static int mutex_taken(void *context) {
    return pthread_mutex_trylock(context) == 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
    sim_block(mutex_taken, mutex, SIM_NEVER);
    return 0;
}

static int thread_ended(void *context) {
    return ((coroutine *)context)->state == ENDED;
}

int __wrap_pthread_join(pthread_t thread, void **result) {
    coroutine *joined = &threads[(uint32_t)thread];
    sim_block(thread_ended, joined, SIM_NEVER);
    joined->state = FREE;
    return 0;
}

/* A pass hands reads over: sometimes the readers get on with them before it goes on, as on a machine with many cores. */
void __wrap_st_readers_notify(struct st_core *core, uint32_t count) {
    __real_st_readers_notify(core, count);
    if (!running && sim_chance(2))
        sim_interleave((uint32_t)sim_below(12));
}
