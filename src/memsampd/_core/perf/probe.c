/* What this machine lets us do, tried on a child of our own; and the CPU's own words. */
#include "core.h"
#include "moments.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#define COPIED_BYTES 4096
#define COPIES 20

/* Written by the busy child all the time: a place to set a breakpoint on. */
static volatile uint64_t busy_word;

static void
become_probe(pid_t parent)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL); /* a Python handler must not run here */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "memsampd-probe");
    if (getppid() != parent)
        _exit(0); /* it died before the line above */
}

static void __attribute__((noreturn))
spin(void)
{
    for (;;)
        busy_word++;
}

PyDoc_STRVAR(spawn_busy_child_doc,
             "spawn_busy_child()\n--\n\n"
             "Fork a child that burns user CPU time and writes one 8-byte word all the time.\n\n"
             "Returns (pid, address of the word). The caller kills and reaps it; it dies with the\n"
             "calling thread in any case.");

static PyObject *
spawn_busy_child(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    pid_t parent = getpid();
    pid_t child = fork();
    if (child < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (child == 0) {
        become_probe(parent);
        spin();
    }
    return Py_BuildValue("(iK)", (int)child, (unsigned long long)(uintptr_t)&busy_word);
}

/* Each round is four instructions: a load of known_words[0], a store to known_words[8], and a
 * conditional branch, taken but for the last. */
static volatile uint64_t known_words[16] __attribute__((aligned(64)));
extern const char known_load[] __attribute__((visibility("hidden")));
extern const char known_store[] __attribute__((visibility("hidden")));
extern const char known_branch[] __attribute__((visibility("hidden")));
extern const char known_end[] __attribute__((visibility("hidden")));

static void __attribute__((noinline, noclone))
run_known(uint64_t rounds)
{
    __asm__ volatile(".globl known_load\n.hidden known_load\n"
                     "known_load:\n"
                     "mov (%1), %%rax\n"
                     ".globl known_store\n.hidden known_store\n"
                     "known_store:\n"
                     "mov %%rax, 64(%1)\n"
                     "dec %0\n"
                     ".globl known_branch\n.hidden known_branch\n"
                     "known_branch:\n"
                     "jnz known_load\n"
                     ".globl known_end\n.hidden known_end\n"
                     "known_end:\n"
                     : "+r"(rounds)
                     : "r"(known_words)
                     : "rax", "memory", "cc");
}

PyDoc_STRVAR(run_known_loop_doc,
             "run_known_loop(rounds)\n--\n\n"
             "Run a loop whose every round is four instructions: a load, a store, and a conditional\n"
             "branch among them.\n\n"
             "Returns (load, store, branch, end, loaded, stored): the addresses of these\n"
             "instructions and of what follows, and of the 8 bytes that are loaded and stored.");

static PyObject *
run_known_loop(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long rounds;
    if (!PyArg_ParseTuple(args, "K", &rounds))
        return NULL;
    if (rounds == 0)
        return PyErr_Format(PyExc_ValueError, "at least one round");
    Py_BEGIN_ALLOW_THREADS
    run_known(rounds);
    Py_END_ALLOW_THREADS
    return Py_BuildValue(
        "(KKKKKK)", (unsigned long long)(uintptr_t)known_load,
        (unsigned long long)(uintptr_t)known_store, (unsigned long long)(uintptr_t)known_branch,
        (unsigned long long)(uintptr_t)known_end, (unsigned long long)(uintptr_t)&known_words[0],
        (unsigned long long)(uintptr_t)&known_words[8]);
}

PyDoc_STRVAR(copy_seconds_doc,
             "copy_seconds()\n--\n\n"
             "Seconds that this thread takes for a byte of a short copy by rep movsb, the best of some.");

static PyObject *
copy_seconds(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static unsigned char from[COPIED_BYTES], to[COPIED_BYTES];
    double best = 1.0;

    for (int i = 0; i < COPIES; i++) {
        void *target = to, *source = from;
        size_t left = sizeof to;
        const double began = now_seconds();
#if defined(__x86_64__)
        __asm__ volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(left) : : "memory");
#endif
        best = fmin(best, now_seconds() - began);
    }
    return PyFloat_FromDouble(best / COPIED_BYTES);
}

/* Seize, interrupt, wait for the stop and detach; 0 or an errno. */
static int
try_ptrace(pid_t tid)
{
    int status;
    if (ptrace(PTRACE_SEIZE, tid, 0, 0) < 0)
        return errno;
    if (ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0)
        return errno;
    while (waitpid(tid, &status, __WALL) < 0)
        if (errno != EINTR)
            return errno;
    if (!WIFSTOPPED(status))
        return ESRCH;
    return ptrace(PTRACE_DETACH, tid, 0, 0) < 0 ? errno : 0;
}

PyDoc_STRVAR(probe_ptrace_doc,
             "probe_ptrace(tid)\n--\n\n"
             "Seize, interrupt and detach a thread, as attaching does; OSError if refused.\n\n"
             "A thread that waits in a system call may see EINTR: meant for a child of our own.");

static PyObject *
probe_ptrace(PyObject *Py_UNUSED(module), PyObject *args)
{
    int tid, error;
    if (!PyArg_ParseTuple(args, "i", &tid))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = try_ptrace(tid);
    Py_END_ALLOW_THREADS
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(cpuid_doc, "cpuid(leaf, subleaf=0)\n--\n\n"
                        "The words (eax, ebx, ecx, edx) of CPUID on the CPU that happens to run\n"
                        "this; None if the CPU is no x86 or has no such leaf.");

static PyObject *
cpuid(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned leaf, subleaf = 0;
    if (!PyArg_ParseTuple(args, "I|I", &leaf, &subleaf))
        return NULL;
#if defined(__x86_64__) || defined(__i386__)
    unsigned eax, ebx, ecx, edx;
    if (__get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx))
        return Py_BuildValue("(IIII)", eax, ebx, ecx, edx);
#endif
    Py_RETURN_NONE;
}

PyMethodDef memsampd_probe[] = {
    {"spawn_busy_child", spawn_busy_child, METH_NOARGS, spawn_busy_child_doc},
    {"run_known_loop", run_known_loop, METH_VARARGS, run_known_loop_doc},
    {"copy_seconds", copy_seconds, METH_NOARGS, copy_seconds_doc},
    {"probe_ptrace", probe_ptrace, METH_VARARGS, probe_ptrace_doc},
    {"cpuid", cpuid, METH_VARARGS, cpuid_doc},
    {NULL, NULL, 0, NULL},
};
