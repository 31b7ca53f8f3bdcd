/* See crash.h. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "flight/crash.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 20000 /* after that a deadly signal has its way */

static struct {
    atomic_int owner; /* process; 0: none */
    sem_t wake;
    atomic_int signal, rescued;
    void (*rescue)(int signal);
} crash;

/* As if there had been no handler: it is pending until the handler returns. */
static void end_by(int signal)
{
    struct sigaction plain;
    memset(&plain, 0, sizeof plain);
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, NULL);
    raise(signal);
}

#define LEAVING (-1) /* in place of a signal */

static void on_signal(int signal)
{
    int none = 0;
    if (getpid() != atomic_load(&crash.owner)) {
        end_by(signal);
        return;
    }
    const bool first = atomic_compare_exchange_strong(&crash.signal, &none, signal);
    if (first) sem_post(&crash.wake);
    if (signal == SIGTERM) return; /* the program goes on until our thread ends it */
    for (int waited = 0; waited < PATIENCE_MS && !atomic_load(&crash.rescued); waited += 10)
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    end_by(signal);
}

static void *wait_for_signal(void *nothing)
{
    while (sem_wait(&crash.wake) != 0) {
    }
    const int signal = atomic_load(&crash.signal);
    crash.rescue(signal == LEAVING ? 0 : signal);
    atomic_store(&crash.rescued, 1);
    if (signal == SIGTERM) {
        struct sigaction plain;
        memset(&plain, 0, sizeof plain);
        plain.sa_handler = SIG_DFL;
        sigaction(signal, &plain, NULL);
        kill(getpid(), signal);
    }
    return nothing;
}

static bool start_thread(void)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, wait_for_signal, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) return false;
    pthread_setname_np(thread, "lastbit-crash");
    pthread_detach(thread);
    return true;
}

static void take(int signal)
{
    struct sigaction now, ours;
    if (sigaction(signal, NULL, &now) != 0) return;
    const bool inherited = !(now.sa_flags & SA_SIGINFO) && now.sa_handler == on_signal;
    if (!inherited && (now.sa_flags & SA_SIGINFO || now.sa_handler != SIG_DFL)) return; /* the program's own */
    memset(&ours, 0, sizeof ours);
    ours.sa_handler = on_signal;
    ours.sa_flags = SA_RESTART;
    sigaction(signal, &ours, NULL);
}

bool lb_crash_watch(void (*rescue)(int signal))
{
    if (atomic_load(&crash.owner) == getpid()) {
        crash.rescue = rescue;
        return true;
    }
    crash.rescue = rescue;
    atomic_store(&crash.signal, 0);
    atomic_store(&crash.rescued, 0);
    if (sem_init(&crash.wake, 0, 0) != 0 || !start_thread()) return false;
    atomic_store(&crash.owner, getpid());
    static const int deadly[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM};
    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; i++) take(deadly[i]);
    return true;
}

bool lb_crash_leave(void)
{
    int none = 0;
    if (getpid() != atomic_load(&crash.owner) || !atomic_compare_exchange_strong(&crash.signal, &none, LEAVING))
        return false;
    sem_post(&crash.wake);
    return true;
}

bool lb_crash_is_over(void)
{
    return atomic_load(&crash.rescued);
}
