/* Registers that advance steadily: what sampler/clock/odometer.py looks for, one register after another. */
#include "core.h"
#include "ascending.h"
#include "records.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A register is steady if its advances deviate by so much in the median, and nearly all by less than this. */
#define STEADY 0.2
#define ALIKE 0.45
#define MOST 0.85
#define STEPS_LEAST 64 /* smallest steps of a register in a burst: fewer tell too little */
#define STRAIGHT 0.1
#define PART_LEAST 0.02 /* of a burst's accesses: of so many the advance is looked at by itself */
#define PART_APART 3.0
/* Samples do not tell how often a register came round between two of them. They need not, where it comes so
 * many times as far as it advances: once round in nearly the same time would be chance. */
#define FAR 8.0

/* The median; sorts the values. */
static double
median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending_double);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

struct rate {
    double speed, error, agreement;
};

/* The rate that most of some speeds, at least one, agree on, if it is one; `room` is for as many. */
static bool
is_steady(const double *speed, size_t count, double low, double high, double *room, struct rate *rate)
{
    size_t alike = 0;

    memcpy(room, speed, count * sizeof *speed);
    rate->speed = median(room, count);
    if (!(low < rate->speed && rate->speed < high))
        return false;
    for (size_t i = 0; i < count; i++) {
        room[i] = fabs(speed[i] / rate->speed - 1);
        alike += room[i] < ALIKE;
    }
    const double deviation = median(room, count), share = (double)alike / (double)count;
    rate->error = deviation / sqrt((double)count);
    rate->agreement = share - deviation;
    return deviation <= STEADY && share >= MOST;
}

/* Where loops begin anew that a burst did not see, pairs of samples go back. Half of the others agree, and a
 * fifth of all. */
#define NEARLY 0.1
#define SHARE 0.5
#define SHARE_OF_ALL 0.2
#define PAIRS_LEAST 6
#define NONE_ANEW 3.0 /* times their rate: if no pair goes further, or back, no loop began anew */

/* The rate that most of those speeds agree on about that go on; `room` is for as many. */
static bool
is_agreed(const double *speed, size_t count, double low, double high, double *room, struct rate *rate)
{
    size_t ahead = 0, first = 0, most = 0;
    double least = INFINITY, fastest = -INFINITY, sum = 0.0;

    for (size_t i = 0; i < count; i++) {
        least = fmin(least, speed[i]);
        fastest = fmax(fastest, speed[i]);
        sum += speed[i];
        if (speed[i] > 0)
            room[ahead++] = speed[i];
    }
    qsort(room, ahead, sizeof *room, ascending_double);
    for (size_t i = 0, end = 0; i < ahead; i++) {
        while (end < ahead && room[end] <= room[i] * (1 + 2 * NEARLY))
            end++;
        if (end - i > most) {
            most = end - i;
            first = i;
        }
    }
    const double agreeing = (double)most, all = (double)count;
    if (agreeing < PAIRS_LEAST || agreeing < SHARE * (double)ahead || agreeing < SHARE_OF_ALL * all)
        return false;
    rate->speed = room[first + most / 2];
    if (least > 0 && fastest < NONE_ANEW * rate->speed) /* slower and faster, but none anew */
        rate->speed = sum / all;
    rate->error = NEARLY / sqrt(agreeing);
    rate->agreement = agreeing / all;
    return low < rate->speed && rate->speed < high;
}

/* What a burst and samples tell; rows have 16 registers. */
struct look {
    const int64_t *advance; /* from sample to sample */
    const double *seconds;
    size_t pairs;
    const int64_t *burst; /* advances up to each moment of the burst */
    const double *accesses;
    size_t moments;
    double low, high; /* rates that are possible */
    const int64_t *first, *beyond; /* registers at more samples, and what they advance by */
    size_t wider;
};

static uint64_t
size_of(int64_t advance)
{
    return advance < 0 ? -(uint64_t)advance : (uint64_t)advance;
}

/* The smallest step that all advances are made of, 0 where there are none. */
static uint64_t
unit_of(const struct look *l, size_t k)
{
    uint64_t unit = 0;

    for (size_t i = 0; i < l->pairs; i++) {
        uint64_t other = size_of(l->advance[i * REGISTERS + k]);
        while (other != 0) {
            const uint64_t rest = unit % other;
            unit = other;
            other = rest;
        }
    }
    return unit;
}

/* Whether a burst's own moments lie on one line. */
static bool
is_straight(const struct look *l, size_t k)
{
    const double steps = (double)l->burst[(l->moments - 1) * REGISTERS + k];
    double told = 0.0, share = 0.0;

    if (!(fabs(steps) >= 1))
        return false;
    for (size_t i = 0; i < l->moments; i++) {
        const double now = (double)l->burst[i * REGISTERS + k] / steps;
        const double done = l->accesses[i] / l->accesses[l->moments - 1];
        const double gone = now - told, made = done - share;
        if (!(fabs(now - done) <= STRAIGHT))
            return false;
        if (i > 0 && !(gone > made / PART_APART && gone < made * PART_APART) && !(made < PART_LEAST))
            return false;
        told = now;
        share = done;
    }
    return true;
}

/* How far a register comes. */
static double
span_of(const struct look *l, size_t k)
{
    double least = INFINITY, most = -INFINITY;

    for (size_t i = 0; i < l->wider; i++) {
        const double first = (double)l->first[i * REGISTERS + k];
        const double second = first + (double)l->beyond[i * REGISTERS + k];
        least = fmin(least, fmin(first, second));
        most = fmax(most, fmax(first, second));
    }
    return most - least;
}

/* Look for the register that advances steadiest, the first of equals; -1: none does. */
static int
find(const struct look *l, double usual_seconds, double *room, struct rate *best)
{
    int found = -1;

    for (size_t k = 0; k < REGISTERS; k++) {
        const double steps = (double)l->burst[(l->moments - 1) * REGISTERS + k];
        const uint64_t unit = unit_of(l, k);
        if (unit == 0 || !(fabs(steps) / (double)unit >= STEPS_LEAST) || !is_straight(l, k))
            continue;
        const double per_step = l->accesses[l->moments - 1] / steps;
        for (size_t i = 0; i < l->pairs; i++)
            room[i] = (double)l->advance[i * REGISTERS + k] * per_step / l->seconds[i];
        struct rate rate;
        if (!is_steady(room, l->pairs, l->low, l->high, room + l->pairs, &rate))
            continue;
        /* Whether no faster rate explains the same samples: who comes round once more between two. */
        const double faster = span_of(l, k) * fabs(per_step) / usual_seconds;
        const bool is_alone = rate.speed + faster > l->high || faster > FAR * rate.speed;
        if (is_alone && (found < 0 || rate.agreement > best->agreement)) {
            found = (int)k;
            *best = rate;
        }
    }
    return found;
}

PyDoc_STRVAR(find_counter_doc,
             "find_counter(advance, seconds, burst, accesses, low, high, first, beyond)\n--\n\n"
             "The register that advances steadiest, and rate, error and agreement; or None.\n\n"
             "Advances of 16 registers each (int64) and times (float64) from sample to sample, advances up to "
             "moments of a burst and accesses (float64) by then, what rates are possible, and registers at "
             "more samples and their advances.");

static PyObject *
find_counter(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer advance, seconds, burst, accesses, first, beyond;
    double low, high;
    if (!PyArg_ParseTuple(args, "y*y*y*y*ddy*y*:find_counter", &advance, &seconds, &burst, &accesses,
                          &low, &high, &first, &beyond))
        return NULL;
    const size_t row = REGISTERS * sizeof(int64_t);
    const struct look l = {advance.buf, seconds.buf, (size_t)seconds.len / sizeof(double),
                           burst.buf, accesses.buf, (size_t)accesses.len / sizeof(double),
                           low, high, first.buf, beyond.buf, (size_t)first.len / row};
    double *room = PyMem_Malloc((2 * l.pairs + 1) * sizeof *room);
    PyObject *told = NULL;
    struct rate rate = {0};

    if ((size_t)advance.len != l.pairs * row || (size_t)burst.len != l.moments * row ||
        first.len != beyond.len || l.pairs == 0 || l.moments == 0)
        PyErr_SetString(PyExc_ValueError, "rows differ in number, or there are none");
    else if (room == NULL)
        PyErr_NoMemory();
    else {
        memcpy(room, l.seconds, l.pairs * sizeof *room);
        const int k = find(&l, median(room, l.pairs), room, &rate);
        told = k < 0 ? Py_NewRef(Py_None)
                     : Py_BuildValue("(iddd)", k, rate.speed, rate.error, rate.agreement);
    }
    PyMem_Free(room);
    PyBuffer_Release(&advance);
    PyBuffer_Release(&seconds);
    PyBuffer_Release(&burst);
    PyBuffer_Release(&accesses);
    PyBuffer_Release(&first);
    PyBuffer_Release(&beyond);
    return told;
}

typedef bool judge(const double *speed, size_t count, double low, double high, double *room,
                   struct rate *rate);

static PyObject *
rate_by(PyObject *args, judge *agrees)
{
    Py_buffer speeds;
    double low, high;
    if (!PyArg_ParseTuple(args, "y*dd", &speeds, &low, &high))
        return NULL;
    const size_t count = (size_t)speeds.len / sizeof(double);
    double *room = count != 0 ? PyMem_Malloc(count * sizeof *room) : NULL;
    PyObject *told = NULL;
    struct rate rate;

    if (count == 0)
        PyErr_SetString(PyExc_ValueError, "no speeds");
    else if (room == NULL)
        PyErr_NoMemory();
    else if (agrees(speeds.buf, count, low, high, room, &rate))
        told = Py_BuildValue("(ddd)", rate.speed, rate.error, rate.agreement);
    else
        told = Py_NewRef(Py_None);
    PyMem_Free(room);
    PyBuffer_Release(&speeds);
    return told;
}

PyDoc_STRVAR(steady_rate_doc,
             "steady_rate(speeds, low, high)\n--\n\n"
             "Rate, error and agreement of speeds (float64) that mostly agree; None if they do not, or on "
             "what is not possible.");

static PyObject *
steady_rate(PyObject *Py_UNUSED(module), PyObject *args)
{
    return rate_by(args, is_steady);
}

PyDoc_STRVAR(agreed_rate_doc,
             "agreed_rate(speeds, low, high)\n--\n\n"
             "The same of those that go on, where half of these agree closely.");

static PyObject *
agreed_rate(PyObject *Py_UNUSED(module), PyObject *args)
{
    return rate_by(args, is_agreed);
}

PyMethodDef memsampd_odometer[] = {
    {"find_counter", find_counter, METH_VARARGS, find_counter_doc},
    {"steady_rate", steady_rate, METH_VARARGS, steady_rate_doc},
    {"agreed_rate", agreed_rate, METH_VARARGS, agreed_rate_doc},
    {NULL, NULL, 0, NULL},
};
