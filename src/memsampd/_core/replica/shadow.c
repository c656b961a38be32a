/* Shadows: disposable copy-on-write children of a stopped thread, and the end of them. */
#include "core.h"
#include "tracee.h"
#include "unforked.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SHADOWS_MAXIMUM 4
#define PAGE_BYTES 4096u
#define PARTING_ROUNDS 1000
#define COLLECTED_MAXIMUM 16
#define FDINFO_BYTES 128 /* of each file: what of it matters comes first */

/* A child that shares the descriptor table until the caller unshares it, that sends no signal when
 * it ends, and whose stack would let it only end. */
#define SHADOW_CLONE_FLAGS CLONE_FILES

struct spawned {
    pid_t pid[SHADOWS_MAXIMUM];    /* in our PID namespace */
    long ns_pid[SHADOWS_MAXIMUM];  /* in the target's */
    int count;
};

/* Files of /proc/PID/fdinfo, and what they say of the target's descriptors at the stop. */
struct fdinfo {
    const int32_t *descriptor;
    size_t count;
    char *text; /* FDINFO_BYTES each, ended by zeros */
};

/* While the target is stopped: its descriptors' offsets move on as soon as it runs. */
static void
fdinfo_read(const struct fdinfo *f)
{
    for (size_t i = 0; i < f->count; i++) {
        char *text = f->text + i * FDINFO_BYTES;
        ssize_t got = pread(f->descriptor[i], text, FDINFO_BYTES - 1, 0);
        text[got > 0 ? got : 0] = '\0';
    }
}

/* The shadow's first stop, its leash, and the registers and memory of the moment it was made in. */
static enum tracee_status
adopt(pid_t pid, const struct tracee *parent)
{
    struct user_regs_struct regs = parent->regs;
    struct iovec area = {&regs, sizeof regs};
    struct iovec mine = {parent->scratch_before, parent->scratch_bytes};
    struct iovec theirs = {(void *)(uintptr_t)parent->scratch_address, parent->scratch_bytes};
    int status;

    if (tracee_wait(pid, &status) < 0)
        return TRACEE_GONE;
    regs.orig_rax = (unsigned long)-1; /* or it would restart its parent's system call */
    if (ptrace(PTRACE_SETOPTIONS, pid, NULL,
               (void *)(parent->options | PTRACE_O_EXITKILL)) < 0 ||
        ptrace(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &area) < 0)
        return TRACEE_GONE;
    if (process_vm_writev(pid, &mine, 1, &theirs, 1, 0) != (ssize_t)mine.iov_len)
        return TRACEE_NO_SCRATCH;
    return TRACEE_OK;
}

static void
add_spawned(struct spawned *out, pid_t pid, long ns_pid)
{
    if (pid != 0) {
        out->pid[out->count] = pid;
        out->ns_pid[out->count++] = ns_pid;
    }
}

/* Another child of the target, copied from its first shadow: other threads of the target, which run
 * on, may have written to its memory since that was made. */
static enum tracee_status
spawn_twin(const struct tracee *parent, const struct tracee_site *site, struct spawned *out)
{
    const uint64_t arguments[6] = {SHADOW_CLONE_FLAGS | CLONE_PARENT,
                                   parent->scratch_address + FRAME_CHILD_OFFSET};
    struct user_regs_struct regs = parent->regs;
    pid_t pid = 0;
    long ns_pid = 0;

    regs.orig_rax = (unsigned long)-1;
    enum tracee_status status =
        tracee_clone_shadow(out->pid[0], &regs, site->syscall_address, arguments,
                            parent->options | PTRACE_O_EXITKILL, &ns_pid, &pid);
    add_spawned(out, pid, ns_pid);
    return status == TRACEE_OK ? adopt(pid, parent) : status;
}

/* On the tracer's CPUs: on the target's it would wait behind it at every call. */
static void
rebuild(pid_t pid, const struct tracee *parent, const struct tracee_site *site,
        struct unforked *unforked)
{
    struct user_regs_struct regs = parent->regs;
    cpu_set_t cpus;

    if (unforked->count == 0)
        return;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        sched_setaffinity(pid, sizeof cpus, &cpus);
    regs.orig_rax = (unsigned long)-1;
    unforked_rebuild(unforked, pid, &regs, site->syscall_address);
}

static enum tracee_status
spawn(struct tracee *t, const struct tracee_site *site, int count, struct unforked *unforked,
      const struct fdinfo *fdinfo, struct spawned *out, double *stop_seconds)
{
    const uint64_t arguments[6] = {SHADOW_CLONE_FLAGS,
                                   t->scratch_address + FRAME_CHILD_OFFSET};
    pid_t pid = 0;
    long ns_pid = 0;
    enum tracee_status status = tracee_inject(t, site, SYS_clone, arguments, &ns_pid, &pid);

    int error = errno;
    add_spawned(out, pid, ns_pid);
    if (status == TRACEE_OK) {
        fdinfo_read(fdinfo);
        unforked_read(unforked, t->tid);
    }
    /* The target first: nothing below needs it stopped. Its state stays for the shadows' sake. */
    struct tracee kept = *t;
    t->xstate = t->scratch_before = NULL;
    *stop_seconds = tracee_release(t);
    if (out->count > 0) {
        enum tracee_status adopted = adopt(out->pid[0], &kept);
        status = status == TRACEE_OK ? adopted : status;
        if (status == TRACEE_OK) /* before twins are made of it */
            rebuild(out->pid[0], &kept, site, unforked);
    }
    for (int i = 1; i < count && status == TRACEE_OK; i++) {
        status = spawn_twin(&kept, site, out);
        error = errno;
    }
    free(kept.xstate);
    free(kept.scratch_before);
    errno = error;
    return status;
}

static PyObject *
pids_tuple(const struct spawned *s, int namespaced)
{
    PyObject *tuple = PyTuple_New(s->count);
    for (int i = 0; tuple != NULL && i < s->count; i++) {
        PyObject *pid = PyLong_FromLong(namespaced ? s->ns_pid[i] : s->pid[i]);
        if (pid == NULL || PyTuple_SetItem(tuple, i, pid) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* (syscall, sigreturn, scratch or 0, start and end of the initial stack): site.py. */
static int
site_from_python(PyObject *tuple, void *result)
{
    struct tracee_site *site = result;
    unsigned long long a[5];

    if (!PyArg_ParseTuple(tuple, "KKKKK", &a[0], &a[1], &a[2], &a[3], &a[4]))
        return 0;
    *site = (struct tracee_site){a[0], a[1], a[2], a[3], a[4]};
    return 1;
}

/* The areas that a clone will lack, (start, end, protection) as u64, and room for what is in them. */
static int
unforked_begin(struct unforked *u, pid_t tid, const char *areas, Py_ssize_t areas_bytes,
               const Py_buffer *room)
{
    char path[32];
    uint64_t bytes = 0;

    *u = (struct unforked){(const void *)areas, (size_t)areas_bytes / sizeof *u->areas, room->buf,
                           NULL, -1, -1, -1, NULL, 0, 0, 0.0};
    for (size_t i = 0; i < u->count; i++) {
        const struct unforked_area *area = &u->areas[i];
        if (area->end <= area->start || (area->start | area->end) % PAGE_BYTES != 0)
            bytes = UINT64_MAX / 2;
        else
            bytes += area->end - area->start;
    }
    if ((size_t)areas_bytes % sizeof *u->areas != 0 || bytes > (uint64_t)room->len) {
        PyErr_SetString(PyExc_ValueError, "malformed areas, or no room for what is in them");
        return -1;
    }
    u->state = calloc(u->count + 1, 1);
    u->maps_text = malloc(UNFORKED_MAPS_BYTES);
    if (u->state == NULL || u->maps_text == NULL) {
        free(u->state);
        free(u->maps_text);
        PyErr_NoMemory();
        return -1;
    }
    snprintf(path, sizeof path, "/proc/%d/pagemap", tid);
    if (u->count != 0)
        u->pagemap = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/maps", tid);
    if (u->count != 0)
        u->maps = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/statm", tid);
    u->statm = open(path, O_RDONLY | O_CLOEXEC);
    u->maps_text[0] = '\0';
    return 0;
}

/* (which areas were rebuilt, a byte each; bytes copied; seconds that took; the target's size in pages;
 * its list of areas): of the moment of the stop. */
static PyObject *
unforked_end(struct unforked *u)
{
    for (size_t i = 0; i < u->count; i++)
        u->state[i] = u->state[i] == UNFORKED_REBUILT;
    PyObject *found = Py_BuildValue("(y#ndky)", (const char *)u->state, (Py_ssize_t)u->count,
                                    (Py_ssize_t)u->bytes_read, u->seconds, u->target_pages,
                                    u->maps_text);
    free(u->state);
    free(u->maps_text);
    if (u->pagemap >= 0)
        close(u->pagemap);
    if (u->maps >= 0)
        close(u->maps);
    if (u->statm >= 0)
        close(u->statm);
    return found;
}

/* Room for the texts, present already: a bytes object of ours alone, and NULL without memory. */
static PyObject *
fdinfo_begin(struct fdinfo *f, const char *descriptors, Py_ssize_t bytes)
{
    f->descriptor = (const void *)descriptors;
    f->count = (size_t)bytes / sizeof *f->descriptor;
    PyObject *texts = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(f->count * FDINFO_BYTES));
    if (texts != NULL) {
        f->text = PyBytes_AsString(texts);
        memset(f->text, 0, f->count * FDINFO_BYTES);
    }
    return texts;
}

static PyObject *
shadow_spawn(PyObject *module, PyObject *args)
{
    int tid, count, suspend_seccomp;
    struct tracee_site site;
    struct tracee t;
    struct spawned spawned = {.count = 0};
    struct unforked unforked;
    struct fdinfo fdinfo;
    const char *areas, *descriptors;
    Py_ssize_t areas_bytes, descriptors_bytes;
    Py_buffer room;
    double stop_seconds = 0.0;
    int error;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO&ipy#w*y#:shadow_spawn", &tid, site_from_python, &site, &count,
                          &suspend_seccomp, &areas, &areas_bytes, &room, &descriptors,
                          &descriptors_bytes))
        return NULL;
    if (count < 1 || count > SHADOWS_MAXIMUM) {
        PyErr_SetString(PyExc_ValueError, "count is 1 to 4");
        PyBuffer_Release(&room);
        return NULL;
    }
    if (unforked_begin(&unforked, tid, areas, areas_bytes, &room) < 0) {
        PyBuffer_Release(&room);
        return NULL;
    }
    PyObject *noted = fdinfo_begin(&fdinfo, descriptors, descriptors_bytes);
    if (noted == NULL) {
        PyBuffer_Release(&room);
        Py_XDECREF(unforked_end(&unforked));
        return NULL;
    }
    enum tracee_status status;
    Py_BEGIN_ALLOW_THREADS
    int niceness = tracee_hurry();
    status = tracee_stop(&t, tid, false, suspend_seccomp);
    if (status == TRACEE_OK && !tracee_settle_scratch(&t, &site)) {
        stop_seconds = tracee_release(&t);
        status = TRACEE_NO_SCRATCH;
    }
    if (status == TRACEE_OK)
        status = spawn(&t, &site, count, &unforked, &fdinfo, &spawned, &stop_seconds);
    error = errno;
    tracee_unhurry(niceness);
    if (stop_seconds == 0.0 && t.stopped_at_seconds > 0.0)
        stop_seconds = tracee_now_seconds() - t.stopped_at_seconds; /* in vain, but it was */
    Py_END_ALLOW_THREADS

    PyBuffer_Release(&room);
    PyObject *pids = pids_tuple(&spawned, 0), *ns_pids = pids_tuple(&spawned, 1);
    PyObject *kept = unforked_end(&unforked);
    if (pids == NULL || ns_pids == NULL || kept == NULL) {
        Py_XDECREF(pids);
        Py_XDECREF(ns_pids);
        Py_XDECREF(kept);
        Py_DECREF(noted);
        return NULL;
    }
    struct user_regs_struct regs = t.regs;
    regs.orig_rax = (unsigned long)-1;
    return Py_BuildValue("(siNNy#KKddNKNN)", tracee_status_name(status), error, pids, ns_pids,
                         (const char *)&regs, (Py_ssize_t)sizeof regs, (unsigned long long)t.mask,
                         (unsigned long long)t.pending,
                         t.stopped_at_seconds, stop_seconds, PyBool_FromLong(t.cut_short),
                         (unsigned long long)t.scratch_address, kept, noted);
}

static int
registers_from_python(PyObject *bytes, void *result)
{
    char *registers;
    Py_ssize_t size;

    if (PyBytes_AsStringAndSize(bytes, &registers, &size) < 0)
        return 0;
    if (size != (Py_ssize_t)sizeof(struct user_regs_struct)) {
        PyErr_SetString(PyExc_ValueError, "regs is not what shadow_spawn returned");
        return 0;
    }
    memcpy(result, registers, (size_t)size);
    return 1;
}

static PyObject *
shadow_call(PyObject *module, PyObject *args)
{
    int pid, error;
    unsigned long long syscall_address, a[6] = {0};
    long number, result = 0;
    struct user_regs_struct registers;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO&Kl(KKKKKK):shadow_call", &pid, registers_from_python,
                          &registers, &syscall_address, &number, &a[0], &a[1], &a[2], &a[3],
                          &a[4], &a[5]))
        return NULL;
    const uint64_t arguments[6] = {a[0], a[1], a[2], a[3], a[4], a[5]};
    enum tracee_status status;
    Py_BEGIN_ALLOW_THREADS
    status = tracee_inject_shadow(pid, &registers, syscall_address, number, arguments, &result);
    error = errno;
    Py_END_ALLOW_THREADS
    if (status == TRACEE_CALL_FAILED) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (status != TRACEE_OK) {
        PyErr_Format(PyExc_ProcessLookupError, "shadow %d: %s", pid, tracee_status_name(status));
        return NULL;
    }
    return PyLong_FromLong(result);
}

static PyObject *
shadow_leave_rseq(PyObject *module, PyObject *args)
{
    int pid;
    unsigned long long syscall_address;
    struct user_regs_struct registers;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO&K:shadow_leave_rseq", &pid, registers_from_python,
                          &registers, &syscall_address))
        return NULL;
    enum tracee_status status;
    Py_BEGIN_ALLOW_THREADS
    status = tracee_leave_rseq(pid, &registers, syscall_address);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(status == TRACEE_OK);
}

/* The same thread once more, where it stands: a child of the shadow, or of the target like that. */
static enum tracee_status
fork_shadow(pid_t pid, struct user_regs_struct *regs, uint64_t syscall_address, bool is_sibling,
            long options, pid_t *child, long *ns_child)
{
    const uint64_t arguments[6] = {SHADOW_CLONE_FLAGS | (is_sibling ? CLONE_PARENT : 0)};
    struct iovec area = {regs, sizeof *regs};
    int stopped;

    regs->orig_rax = (unsigned long)-1;
    enum tracee_status status = tracee_clone_shadow(pid, regs, syscall_address, arguments, options,
                                                    ns_child, child);
    if (status != TRACEE_OK)
        return status;
    if (tracee_wait(*child, &stopped) < 0 ||
        ptrace(PTRACE_SETOPTIONS, *child, NULL, (void *)options) < 0 ||
        ptrace(PTRACE_SETREGSET, *child, (void *)NT_PRSTATUS, &area) < 0)
        return TRACEE_GONE;
    return TRACEE_OK;
}

static PyObject *
shadow_fork(PyObject *module, PyObject *args)
{
    int pid, is_sibling, suspend_seccomp, error;
    unsigned long long syscall_address;
    struct user_regs_struct registers;
    pid_t child = 0;
    long ns_child = 0;
    (void)module;

    if (!PyArg_ParseTuple(args, "iO&Kpp:shadow_fork", &pid, registers_from_python, &registers,
                          &syscall_address, &is_sibling, &suspend_seccomp))
        return NULL;
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL |
                   (suspend_seccomp ? PTRACE_O_SUSPEND_SECCOMP : 0);
    enum tracee_status status;
    Py_BEGIN_ALLOW_THREADS
    status = fork_shadow(pid, &registers, syscall_address, is_sibling, options, &child, &ns_child);
    error = errno;
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(siil)", tracee_status_name(status), error, (int)child, ns_child);
}

static PyObject *
shadow_kill(PyObject *module, PyObject *args)
{
    int pid, status;
    struct rusage used = {0};
    (void)module;

    if (!PyArg_ParseTuple(args, "i:shadow_kill", &pid))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    kill(pid, SIGKILL);
    /* Stops that were under way may be reported before the death. */
    for (;;) {
        pid_t got = wait4(pid, &status, __WALL, &used);
        if ((got < 0 && errno != EINTR) || (got == pid && !WIFSTOPPED(status)))
            break;
    }
    Py_END_ALLOW_THREADS
    double cpu_seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                         1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    return Py_BuildValue("(dl)", cpu_seconds, used.ru_minflt);
}

/* What collecting dead shadows takes and gives. */
struct collection {
    pid_t tid;
    int64_t child[COLLECTED_MAXIMUM]; /* numbers in the target's namespace; then 0 or an errno */
    size_t children;
    bool any_state, suspend_seccomp, is_own_thread;
    struct tracee_site site;
    double stop_seconds;
    enum tracee_status status;
    int error;
};

static enum tracee_status
wait_for_children(struct tracee *t, struct collection *c)
{
    enum tracee_status status =
        tracee_settle_scratch(t, &c->site) ? TRACEE_OK : TRACEE_NO_SCRATCH;

    for (size_t i = 0; i < c->children && status == TRACEE_OK; i++) {
        const uint64_t arguments[6] = {(uint64_t)c->child[i], 0, (uint64_t)(__WALL | WNOHANG), 0};
        long result = 0;
        status = tracee_inject(t, &c->site, SYS_wait4, arguments, &result, NULL);
        if (status == TRACEE_CALL_FAILED) {
            c->child[i] = errno;
            status = TRACEE_OK;
        } else if (status == TRACEE_OK) {
            c->child[i] = result == c->child[i] ? 0 : EAGAIN;
        }
    }
    return status;
}

static void *
run_collection(void *argument)
{
    struct collection *c = argument;
    struct tracee t;

    int niceness = tracee_hurry();
    c->status = c->is_own_thread ? tracee_stop_filtered(&t, c->tid)
                                 : tracee_stop(&t, c->tid, c->any_state, c->suspend_seccomp);
    c->error = errno;
    if (c->status == TRACEE_OK) {
        c->status = wait_for_children(&t, c);
        c->error = errno;
        c->stop_seconds = tracee_release(&t);
    }
    tracee_unhurry(niceness);
    return NULL;
}

/* A sleeper under a filter is let go by the end of the thread that traces it. */
static void
collect_from_filtered_sleeper(struct collection *c)
{
    const struct timespec pause = {0, 50000};
    pthread_t thread;

    c->is_own_thread = true;
    if ((c->error = pthread_create(&thread, NULL, run_collection, c)) != 0) {
        c->status = TRACEE_REFUSED;
        return;
    }
    pthread_join(thread, NULL);
    for (unsigned round = 0; round < PARTING_ROUNDS && !tracee_is_untraced(c->tid); round++)
        nanosleep(&pause, NULL);
}

static PyObject *
shadow_reap(PyObject *module, PyObject *args)
{
    int tid, any_state, suspend_seccomp;
    const char *children;
    Py_ssize_t children_bytes;
    struct collection c = {.status = TRACEE_OK};
    (void)module;

    if (!PyArg_ParseTuple(args, "iy#O&pp:shadow_reap", &tid, &children, &children_bytes,
                          site_from_python, &c.site, &any_state, &suspend_seccomp))
        return NULL;
    c.children = (size_t)children_bytes / sizeof c.child[0];
    if (c.children < 1 || c.children > COLLECTED_MAXIMUM) {
        PyErr_SetString(PyExc_ValueError, "1 to 16 children, each an int64");
        return NULL;
    }
    memcpy(c.child, children, c.children * sizeof c.child[0]);
    c.tid = tid;
    c.any_state = any_state;
    c.suspend_seccomp = suspend_seccomp;
    Py_BEGIN_ALLOW_THREADS
    if (any_state && suspend_seccomp)
        collect_from_filtered_sleeper(&c);
    else
        run_collection(&c);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(siy#d)", tracee_status_name(c.status), c.error, (const char *)c.child,
                         (Py_ssize_t)(c.children * sizeof c.child[0]), c.stop_seconds);
}

static PyMethodDef shadow_methods[] = {
    {"shadow_spawn", shadow_spawn, METH_VARARGS, "Clone a running thread into stopped shadows."},
    {"shadow_call", shadow_call, METH_VARARGS, "Make a stopped shadow run one system call."},
    {"shadow_leave_rseq", shadow_leave_rseq, METH_VARARGS,
     "End a stopped shadow's registration for restartable sequences; whether none is left."},
    {"shadow_fork", shadow_fork, METH_VARARGS,
     "Clone a stopped shadow where it stands: (status, errno, pid, pid in its namespace)."},
    {"shadow_kill", shadow_kill, METH_VARARGS, "Kill and collect a shadow."},
    {"shadow_reap", shadow_reap, METH_VARARGS, "Make the target collect dead shadows."},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_shadow(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "SHADOW_SCRATCH_BYTES", FRAME_SCRATCH_BYTES) < 0 ||
        PyModule_AddIntConstant(module, "FDINFO_BYTES", FDINFO_BYTES) < 0 ||
        PyModule_AddIntConstant(module, "SHADOW_EXIT_STATUS", FRAME_CHILD_EXIT_STATUS) < 0 ||
        PyModule_AddStringConstant(module, "SHADOW_SCRATCH_MARK", FRAME_MARK) < 0)
        return -1;
    return PyModule_AddFunctions(module, shadow_methods);
}
