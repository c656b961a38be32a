/* memtrace: a valgrind tool that writes the lines of memory that a program accesses into a pipe.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 * (It links with valgrind's core. It is built and used by the benchmarks only and is no part of
 * the memsampd package.)
 *
 * What counts as a reference is what lackey --trace-mem=yes prints as L and S, with M (a
 * read-modify-write) as a load and a store; of all threads of the process (valgrind runs one at a
 * time), of no forked child. Two differences: VEX translates a locked read-modify-write into a load
 * and a compare-and-swap, which lackey prints as L and M; here it is a load and a store like any
 * other. And an iteration of rep movs and rep stos makes a reference, and counts as an instruction,
 * only if it touches a line that the one before did not touch with that operand: CPUs move lines.
 * One that has nothing to do is an instruction too.
 *
 * The output is a sequence of frames (struct frame below). A frame of runs holds accesses in
 * program order. One word is a run, accesses to one and the same 64-byte line one after the other:
 *
 *     bits 0..41   number of the line: address / 64
 *     bits 42..63  accesses, 1 or more
 *
 * A reference across lines is an access to each. A frame ends where the accesses since the start
 * reach a multiple of --quantum. After the runs stand numbers of blocks that were sampled during
 * the frame: of all instructions, one in --sample-every on average, at random, has the superblock
 * noted that it lies in. A frame of blocks tells what blocks these are, a line of text each: number,
 * address, instructions, offset in the file, file ("-" without one).
 *
 * With --raw=yes it writes the references themselves instead, one 64-bit record each, no frames:
 *
 *     bits 0..47   address of the first byte
 *     bits 48..62  size in bytes
 *     bit 63       1 for a store
 *
 * Such records are what the translated program stores, by inline IR, into a buffer, at a cursor
 * that a superblock loads once, and advances only where it may be left. Instructions are counted
 * there too, down to the next sample. Room in the buffer and the countdown are checked together,
 * once a superblock. So a reference costs about three host instructions and no call. The full
 * buffer is made into runs before it leaves.
 */
#include "pub_tool_basics.h"
#include "pub_tool_aspacemgr.h"
#include "pub_tool_libcassert.h"
#include "pub_tool_libcbase.h"
#include "pub_tool_libcfile.h"
#include "pub_tool_libcprint.h"
#include "pub_tool_libcproc.h"
#include "pub_tool_machine.h"
#include "pub_tool_options.h"
#include "pub_tool_tooliface.h"

/* Moves a descriptor out of the range that the program sees (declared in pub_core_libcfile.h). */
extern Int VG_(safe_fd)(Int oldfd);

enum {
    BUFFER_RECORDS = 1 << 15,
    MARGIN_RECORDS = 1 << 13, /* no superblock makes more: VEX stops at 100 instructions */
    FRAME_RUNS = 1 << 16,
    FRAME_SAMPLES = 1 << 12,
    BLOCKS_TEXT = 1 << 16,
    BLOCKS_LINE = 1 << 10,
    LINE_SHIFT = 6,
    RUN_LINE_BITS = 42,
    ADDRESS_BITS = 48,
    WRITE_BIT = 63,
    MAX_LOADS_AN_INSTRUCTION = 64,
    LONGEST_INSTRUCTION = 15,
};
#define NOWHERE (~0ULL)
#define RUN_LIMIT ((1ULL << (64 - RUN_LINE_BITS)) - 1)

typedef enum { FRAME_OF_RUNS = 1, FRAME_OF_BLOCKS = 2 } FrameKind;

/* Precedes what it counts, in this order: runs and samples (8 bytes each), text. */
typedef struct {
    ULong kind;
    ULong runs;
    ULong samples;
    ULong text_bytes;
    ULong accesses;     /* in the runs */
    ULong instructions; /* executed meanwhile */
} Frame;

/* Options. */
static Int trace_fd = -1;
static Bool raw = False;
static Long quantum = 1 << 20;
static Long sample_every = 10000;

/* Used by translated code. */
static ULong buffer[BUFFER_RECORDS];
static ULong *cursor = buffer;
static Long until_sample;  /* instructions; below 0: a sample is due */
static ULong newest_block; /* superblock entered last */
static Long planned;       /* instructions at which the next sample is due */
/* Where the iteration before of a repeated instruction loaded and stored; NOWHERE between two. */
static ULong element_before[2] = {NOWHERE, NOWHERE};

/* The frame in the making. */
static ULong runs[FRAME_RUNS];
static ULong samples[FRAME_SAMPLES];
static Frame frame;
static ULong run_line, run_accesses; /* the newest run, not yet in the frame */
static ULong room;                   /* accesses until the quantum is full */
static ULong told_instructions;      /* in frames so far */
static HChar blocks_text[BLOCKS_TEXT];
static SizeT blocks_bytes;
static ULong blocks; /* translated so far */

static ULong instructions(void)
{
    return (ULong)(planned - until_sample);
}

static void write_out(const void *from, SizeT left)
{
    while (left > 0 && trace_fd >= 0) {
        Int written = VG_(write)(trace_fd, from, left);
        if (written <= 0) {
            VG_(umsg)("memtrace: the reader has gone; references are lost from here on\n");
            VG_(close)(trace_fd);
            trace_fd = -1;
            return;
        }
        from = (const UChar *)from + written;
        left -= written;
    }
}

/* What is known of blocks leaves before samples of them. */
static void write_blocks(void)
{
    Frame header = {.kind = FRAME_OF_BLOCKS, .text_bytes = blocks_bytes};

    if (blocks_bytes > 0 && !raw) {
        write_out(&header, sizeof header);
        write_out(blocks_text, blocks_bytes);
    }
    blocks_bytes = 0;
}

static void write_frame(ULong instructions_now)
{
    if (run_accesses > 0)
        runs[frame.runs++] = run_line | run_accesses << RUN_LINE_BITS;
    run_accesses = 0;
    if (frame.accesses == 0)
        return;
    write_blocks();
    frame.kind = FRAME_OF_RUNS;
    frame.instructions = instructions_now - told_instructions;
    told_instructions = instructions_now;
    write_out(&frame, sizeof frame);
    write_out(runs, frame.runs * sizeof *runs);
    write_out(samples, frame.samples * sizeof *samples);
    VG_(memset)(&frame, 0, sizeof frame);
}

static inline ULong address_of(ULong record)
{
    return record & ((1ULL << ADDRESS_BITS) - 1);
}

static inline ULong size_of(ULong record)
{
    return record << 1 >> (ADDRESS_BITS + 1);
}

/* Line of the last byte. A sample is a record of size 0 at the beginning of a line: that its last
 * byte lies in another one, like that of a reference across lines, finds both by one comparison. */
static inline ULong last_line_of(ULong record)
{
    return (address_of(record) + size_of(record) - 1) >> LINE_SHIFT;
}

/* Add records to the frame until one has to be looked at closely; returns how many. There must be
 * room for them. Without a branch for "the same line again", which is hard to predict. */
static SizeT add_simple(const ULong *record, SizeT n)
{
    ULong line = run_line, accesses = run_accesses, *out = runs + frame.runs;
    SizeT i;

    for (i = 0; i < n; i++) {
        ULong next = address_of(record[i]) >> LINE_SHIFT;
        if (next != last_line_of(record[i]))
            break;
        *out = line | accesses << RUN_LINE_BITS;
        out += next != line;
        accesses = next != line ? 1 : accesses + 1;
        line = next;
    }
    run_line = line;
    run_accesses = accesses;
    frame.runs = out - runs;
    frame.accesses += i;
    room -= i;
    return i;
}

static void add_access(ULong line)
{
    if (line != run_line || run_accesses == 0) {
        if (run_accesses > 0)
            runs[frame.runs++] = run_line | run_accesses << RUN_LINE_BITS;
        run_line = line;
        run_accesses = 0;
    }
    run_accesses++;
    frame.accesses++;
    room--;
}

/* Write the frame where the quantum ends, or where not much room is left. */
static void end_frame(ULong instructions_now)
{
    if (room > 0 && frame.runs < FRAME_RUNS - 2 && frame.samples < FRAME_SAMPLES &&
        run_accesses < RUN_LIMIT)
        return;
    write_frame(instructions_now);
    if (room == 0)
        room = (ULong)quantum;
}

/* Make the buffer's records into runs. Where a quantum ends is known by access, instructions by
 * buffer only: they are taken to be spread evenly over its records. */
static void add_records(void)
{
    static ULong before; /* instructions at the beginning of this buffer */
    SizeT n = cursor - buffer;
    ULong meanwhile = instructions() - before;

    for (SizeT i = 0; i < n;) {
        if (run_accesses > 0) {
            ULong most = n - i;
            most = most < room ? most : room;
            most = most < FRAME_RUNS - 2 - frame.runs ? most : FRAME_RUNS - 2 - frame.runs;
            most = most < RUN_LIMIT - run_accesses ? most : RUN_LIMIT - run_accesses;
            i += add_simple(buffer + i, most);
            end_frame(before + meanwhile * i / n);
        }
        if (i == n)
            break;
        ULong line = address_of(buffer[i]) >> LINE_SHIFT, last = last_line_of(buffer[i]);
        if (size_of(buffer[i]) == 0) {
            samples[frame.samples++] = line;
            last = line - 1;
        }
        for (i++; line <= last; line++) {
            add_access(line);
            end_frame(before + meanwhile * i / n);
        }
        end_frame(before + meanwhile * i / n);
    }
    before += meanwhile;
}

/* The references without the samples. */
static void write_references(void)
{
    ULong *kept = buffer;

    for (const ULong *record = buffer; record < cursor; record++) {
        *kept = *record;
        kept += size_of(*record) != 0;
    }
    write_out(buffer, (const UChar *)kept - (const UChar *)buffer);
}

static void flush_buffer(void)
{
    if (raw)
        write_references();
    else
        add_records();
    cursor = buffer;
}

/* Marsaglia's xorshift64: the same samples in every run. */
static void plan_sample(void)
{
    static ULong state = 88172645463325252ULL;
    Long interval;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    interval = 1 + (Long)((state >> 11) % (2 * (ULong)sample_every - 1));
    planned += interval;
    until_sample += interval;
}

/* At the entry of a superblock, before it counts: a sample is due, the buffer is full, or both. */
static void attend(void)
{
    for (; until_sample < 0; plan_sample())
        *cursor++ = newest_block << LINE_SHIFT;
    if (cursor > buffer + BUFFER_RECORDS - MARGIN_RECORDS)
        flush_buffer();
}

/* What is known while one superblock is instrumented. */
typedef struct {
    IRSB *out;
    IRExpr *base;  /* cursor at the last point where its advance was not a constant */
    Int pending;   /* records stored from there on */
    Bool advanced; /* the cursor in memory is behind base + pending */
    Int executed;  /* instructions since the count in memory was advanced */
    IRExpr *also;  /* and so many more, unless NULL */
    Bool repeats;  /* the current instruction moves lines */
    IRExpr *loads[MAX_LOADS_AN_INSTRUCTION]; /* addresses loaded by the current instruction */
    Int n_loads;
} Block;

static IRExpr *assign(Block *block, IRType type, IRExpr *value)
{
    IRTemp temp = newIRTemp(block->out->tyenv, type);
    addStmtToIRSB(block->out, IRStmt_WrTmp(temp, value));
    return IRExpr_RdTmp(temp);
}

static IRExpr *constant(ULong value)
{
    return IRExpr_Const(IRConst_U64(value));
}

static IRExpr *position(Block *block)
{
    if (block->pending == 0)
        return block->base;
    return assign(block, Ity_I64,
                  IRExpr_Binop(Iop_Add64, block->base, constant(8 * (ULong)block->pending)));
}

static IRExpr *load_cursor(Block *block)
{
    return assign(block, Ity_I64, IRExpr_Load(Iend_LE, Ity_I64, constant((Addr)&cursor)));
}

/* Must precede every statement that can leave the superblock. */
static void save_progress(Block *block)
{
    IRExpr *countdown = constant((Addr)&until_sample);

    if (block->advanced) {
        IRExpr *here = position(block);
        addStmtToIRSB(block->out, IRStmt_Store(Iend_LE, constant((Addr)&cursor), here));
    }
    if (block->executed > 0 || block->also != NULL) {
        IRExpr *left = assign(block, Ity_I64, IRExpr_Load(Iend_LE, Ity_I64, countdown));
        left = assign(block, Ity_I64, IRExpr_Binop(Iop_Sub64, left, constant(block->executed)));
        if (block->also != NULL)
            left = assign(block, Ity_I64, IRExpr_Binop(Iop_Sub64, left, block->also));
        addStmtToIRSB(block->out, IRStmt_Store(Iend_LE, countdown, left));
    }
    block->advanced = False;
    block->executed = 0;
    block->also = NULL;
}

static void begin_block(Block *block, IRSB *out, ULong number)
{
    IRDirty *call = unsafeIRDirty_0_N(0, "attend", VG_(fnptr_to_fnentry)(&attend),
                                      mkIRExprVec_0());
    IRExpr *left, *until;

    block->out = out;
    block->pending = 0;
    block->advanced = False;
    block->executed = 0;
    block->also = NULL;
    block->repeats = False;
    block->n_loads = 0;

    /* Both are negative when it is time: one test of the sign does for the two. */
    left = assign(block, Ity_I64,
                  IRExpr_Binop(Iop_Sub64,
                               constant((Addr)(buffer + BUFFER_RECORDS - MARGIN_RECORDS)),
                               load_cursor(block)));
    until = assign(block, Ity_I64,
                   IRExpr_Load(Iend_LE, Ity_I64, constant((Addr)&until_sample)));
    left = assign(block, Ity_I64, IRExpr_Binop(Iop_Or64, left, until));
    call->guard = assign(block, Ity_I1, IRExpr_Binop(Iop_CmpLT64S, left, constant(0)));
    addStmtToIRSB(out, IRStmt_Dirty(call));
    addStmtToIRSB(out, IRStmt_Store(Iend_LE, constant((Addr)&newest_block), constant(number)));
    block->base = load_cursor(block);
}

/* ---- rep movs and rep stos, which VEX translates into one iteration and a jump back to it ---- */

static Bool moves_lines(Addr at, UInt length)
{
    const UChar *code = (const UChar *)at;
    Bool repeats = False;

    for (UInt i = 0; i < length && i < LONGEST_INSTRUCTION; i++) {
        repeats |= code[i] == 0xf3 || code[i] == 0xf2;
        if (code[i] == 0xa4 || code[i] == 0xa5 || code[i] == 0xaa || code[i] == 0xab)
            return repeats;
        if (code[i] != 0xf3 && code[i] != 0xf2 && code[i] != 0x66 && code[i] != 0x67 &&
            code[i] >> 4 != 4)
            return False;
    }
    return False;
}

/* Whether an element touches a line that the one before did not. Called by translated code. */
static ULong touches_another(ULong before, ULong at, ULong size)
{
    ULong first = at >> LINE_SHIFT, last = (at + size - 1) >> LINE_SHIFT;
    ULong first_before = before >> LINE_SHIFT, last_before = (before + size - 1) >> LINE_SHIFT;

    return (first != first_before && first != last_before) ||
           (last != first_before && last != last_before);
}

/* The guard of a reference of an iteration, which counts as an instruction if it makes any. */
static IRExpr *guard_of_iteration(Block *block, IRExpr *address, Int size, Bool is_write)
{
    IRExpr *place = constant((Addr)&element_before[is_write]);
    IRExpr *before = assign(block, Ity_I64, IRExpr_Load(Iend_LE, Ity_I64, place));
    IRExpr *touches = assign(
        block, Ity_I64,
        mkIRExprCCall(Ity_I64, 0, "touches_another", VG_(fnptr_to_fnentry)(&touches_another),
                      mkIRExprVec_3(before, address, constant((ULong)size))));

    addStmtToIRSB(block->out, IRStmt_Store(Iend_LE, place, address));
    block->also = block->also == NULL
                      ? touches
                      : assign(block, Ity_I64, IRExpr_Binop(Iop_Or64, block->also, touches));
    return assign(block, Ity_I1, IRExpr_Binop(Iop_CmpNE64, touches, constant(0)));
}

/* Where a repeated instruction may have come to its end: at the exit before each iteration. */
static void end_repetition(Block *block, IRExpr *is_over)
{
    IRExpr *before, *is_empty = NULL;

    for (Int is_write = 0; is_write < 2; is_write++) {
        IRExpr *place = constant((Addr)&element_before[is_write]);
        before = assign(block, Ity_I64, IRExpr_Load(Iend_LE, Ity_I64, place));
        is_empty = assign(block, Ity_I1, IRExpr_Binop(Iop_CmpEQ64, before, constant(NOWHERE)));
        before = assign(block, Ity_I64, IRExpr_ITE(is_over, constant(NOWHERE), before));
        addStmtToIRSB(block->out, IRStmt_Store(Iend_LE, place, before));
    }
    is_over = assign(block, Ity_I64, IRExpr_Unop(Iop_1Uto64, is_over));
    is_empty = assign(block, Ity_I64, IRExpr_Unop(Iop_1Uto64, is_empty)); /* by what is stored */
    is_empty = assign(block, Ity_I64, IRExpr_Binop(Iop_And64, is_empty, is_over));
    block->also = block->also == NULL
                      ? is_empty
                      : assign(block, Ity_I64, IRExpr_Binop(Iop_Add64, block->also, is_empty));
}

/* Record one reference; with a guard only if that is true when the program gets here. */
static void record(Block *block, IRExpr *address, Int size, Bool is_write, IRExpr *guard)
{
    tl_assert(size > 0 && size < 1 << (WRITE_BIT - ADDRESS_BITS));
    tl_assert(block->pending < MARGIN_RECORDS);
    if (block->repeats)
        guard = guard_of_iteration(block, address, size, is_write);
    ULong tag = (ULong)size << ADDRESS_BITS | (ULong)(is_write ? 1 : 0) << WRITE_BIT;
    IRExpr *word = assign(block, Ity_I64, IRExpr_Binop(Iop_Or64, address, constant(tag)));

    IRExpr *here = position(block);
    addStmtToIRSB(block->out, IRStmt_Store(Iend_LE, here, word));
    block->advanced = True;
    if (guard == NULL) {
        block->pending++;
        return;
    }
    /* The word is stored either way, the cursor passes it only if the guard holds. */
    IRExpr *bit = assign(block, Ity_I64, IRExpr_Unop(Iop_1Uto64, guard));
    IRExpr *step = assign(block, Ity_I64,
                          IRExpr_Binop(Iop_Shl64, bit, IRExpr_Const(IRConst_U8(3))));
    block->base = assign(block, Ity_I64, IRExpr_Binop(Iop_Add64, here, step));
    block->pending = 0;
}

static void record_load(Block *block, IRExpr *address, Int size, IRExpr *guard)
{
    record(block, address, size, False, guard);
    if (guard == NULL && block->n_loads < MAX_LOADS_AN_INSTRUCTION)
        block->loads[block->n_loads++] = address;
}

static void record_cas(Block *block, const IRCAS *cas)
{
    Int size = sizeofIRType(typeOfIRExpr(block->out->tyenv, cas->dataLo));
    Bool loaded = False;

    if (cas->dataHi != NULL)
        size *= 2;
    for (Int i = 0; i < block->n_loads; i++)
        loaded = loaded || eqIRAtom(block->loads[i], cas->addr);
    if (!loaded)
        record(block, cas->addr, size, False, NULL);
    record(block, cas->addr, size, True, NULL);
}

static void record_dirty(Block *block, const IRDirty *dirty)
{
    IRExpr *guard = dirty->guard;

    if (dirty->mFx == Ifx_None)
        return;
    if (guard->tag == Iex_Const) {
        if (!guard->Iex.Const.con->Ico.U1)
            return;
        guard = NULL;
    }
    if (dirty->mFx == Ifx_Read || dirty->mFx == Ifx_Modify)
        record(block, dirty->mAddr, dirty->mSize, False, guard);
    if (dirty->mFx == Ifx_Write || dirty->mFx == Ifx_Modify)
        record(block, dirty->mAddr, dirty->mSize, True, guard);
}

static void record_references(Block *block, const IRStmt *statement)
{
    const IRTypeEnv *types = block->out->tyenv;

    switch (statement->tag) {
    case Ist_IMark:
        block->n_loads = 0;
        block->repeats =
            moves_lines(statement->Ist.IMark.addr, statement->Ist.IMark.len);
        block->executed += !block->repeats;
        break;
    case Ist_WrTmp: {
        const IRExpr *value = statement->Ist.WrTmp.data;
        if (value->tag == Iex_Load)
            record_load(block, value->Iex.Load.addr, sizeofIRType(value->Iex.Load.ty), NULL);
        break;
    }
    case Ist_Store: {
        const IRExpr *data = statement->Ist.Store.data;
        record(block, statement->Ist.Store.addr, sizeofIRType(typeOfIRExpr(types, data)), True,
               NULL);
        break;
    }
    case Ist_LoadG: {
        const IRLoadG *load = statement->Ist.LoadG.details;
        IRType type, widened;
        typeOfIRLoadGOp(load->cvt, &widened, &type);
        record_load(block, load->addr, sizeofIRType(type), load->guard);
        break;
    }
    case Ist_StoreG: {
        const IRStoreG *store = statement->Ist.StoreG.details;
        record(block, store->addr, sizeofIRType(typeOfIRExpr(types, store->data)), True,
               store->guard);
        break;
    }
    case Ist_CAS:
        record_cas(block, statement->Ist.CAS.details);
        break;
    case Ist_LLSC: {
        const IRExpr *data = statement->Ist.LLSC.storedata;
        IRType type = data ? typeOfIRExpr(types, data)
                           : typeOfIRTemp(types, statement->Ist.LLSC.result);
        record(block, statement->Ist.LLSC.addr, sizeofIRType(type), data != NULL, NULL);
        break;
    }
    case Ist_Dirty:
        record_dirty(block, statement->Ist.Dirty.details);
        break;
    default:
        break;
    }
}

/* Note what a new superblock is; returns its number. */
static ULong describe_block(Addr address, const IRSB *code)
{
    const NSegment *segment = VG_(am_find_nsegment)(address);
    const HChar *file = segment ? VG_(am_get_filename)(segment) : NULL;
    ULong offset = file ? address - segment->start + segment->offset : address;
    Int count = 0;

    for (Int i = 0; i < code->stmts_used; i++)
        count += code->stmts[i]->tag == Ist_IMark;
    if (blocks_bytes > BLOCKS_TEXT - BLOCKS_LINE)
        write_blocks();
    blocks_bytes += VG_(snprintf)(blocks_text + blocks_bytes, BLOCKS_LINE,
                                  "%llu %lu %d %llu %.900s\n", blocks, address, count, offset,
                                  file ? file : "-");
    return blocks++;
}

static IRSB *memtrace_instrument(VgCallbackClosure *closure, IRSB *in,
                                 const VexGuestLayout *layout, const VexGuestExtents *extents,
                                 const VexArchInfo *host, IRType guest_word, IRType host_word)
{
    IRSB *out = deepCopyIRSBExceptStmts(in);
    Block block;
    Int i = 0;

    (void)layout, (void)extents, (void)host;
    tl_assert(guest_word == Ity_I64 && host_word == Ity_I64);
    while (i < in->stmts_used && in->stmts[i]->tag != Ist_IMark)
        addStmtToIRSB(out, in->stmts[i++]);
    begin_block(&block, out, describe_block(closure->readdr, in));
    for (; i < in->stmts_used; i++) {
        if (in->stmts[i]->tag == Ist_Exit) {
            if (block.repeats)
                end_repetition(&block, in->stmts[i]->Ist.Exit.guard);
            save_progress(&block);
        } else
            record_references(&block, in->stmts[i]);
        addStmtToIRSB(out, in->stmts[i]);
    }
    save_progress(&block);
    return out;
}

static void forget_in_child(ThreadId thread)
{
    (void)thread;
    cursor = buffer;
    trace_fd = -1;
}

static Bool memtrace_process_option(const HChar *argument)
{
    return VG_INT_CLO(argument, "--trace-fd", trace_fd) || VG_BOOL_CLO(argument, "--raw", raw) ||
           VG_BINT_CLO(argument, "--quantum", quantum, 1, 1LL << 40) ||
           VG_BINT_CLO(argument, "--sample-every", sample_every, 1, 1LL << 40);
}

static void memtrace_print_usage(void)
{
    VG_(printf)(
        "    --trace-fd=<number>       descriptor to write to (required)\n"
        "    --raw=no|yes              write references instead of runs [no]\n"
        "    --quantum=<number>        accesses after which a frame ends [1048576]\n"
        "    --sample-every=<number>   mean instructions between samples [10000]\n");
}

static void memtrace_print_debug_usage(void)
{
    VG_(printf)("    (none)\n");
}

static void memtrace_post_clo_init(void)
{
    if (trace_fd < 0) {
        VG_(umsg)("memtrace: --trace-fd=<number> is missing\n");
        VG_(exit)(2);
    }
    trace_fd = VG_(safe_fd)(trace_fd);
    room = (ULong)quantum;
    plan_sample();
    VG_(atfork)(NULL, NULL, forget_in_child);
}

static void memtrace_fini(Int exit_code)
{
    (void)exit_code;
    flush_buffer();
    write_frame(instructions());
}

static void memtrace_pre_clo_init(void)
{
    VG_(details_name)("memtrace");
    VG_(details_version)("2");
    VG_(details_description)("a writer of the lines that are accessed");
    VG_(details_copyright_author)("GPL-2.0-or-later");
    VG_(details_bug_reports_to)("the memsampd project");
    VG_(details_avg_translation_sizeB)(400);

    VG_(basic_tool_funcs)(memtrace_post_clo_init, memtrace_instrument, memtrace_fini);
    VG_(needs_command_line_options)(memtrace_process_option, memtrace_print_usage,
                                    memtrace_print_debug_usage);
}

VG_DETERMINE_INTERFACE_VERSION(memtrace_pre_clo_init)
