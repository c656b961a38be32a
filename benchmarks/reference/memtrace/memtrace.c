/* memtrace: a valgrind tool that writes every data reference of a program into a pipe.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 * (It links with valgrind's core. It is built and used by the benchmarks only and is no part of
 * the memsampd package.)
 *
 * One reference is one little-endian 64-bit record:
 *
 *     bits 0..47   address of the first byte
 *     bits 48..62  size in bytes
 *     bit 63       1 for a store
 *
 * in program order, of all threads of the process (valgrind runs one at a time), of no forked
 * child. What counts as a reference is what lackey --trace-mem=yes prints as L and S, with M (a
 * read-modify-write) as a load and a store. One difference: VEX translates a locked
 * read-modify-write into a load and a compare-and-swap, which lackey prints as L and M; here it is
 * a load and a store like any other.
 *
 * Records are stored by inline IR at a cursor that a superblock loads once, and advances only where
 * it may be left; room is checked once a superblock. So a reference costs about three host
 * instructions and no call.
 */
#include "pub_tool_basics.h"
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
    BUFFER_RECORDS = 1 << 16,
    MARGIN_RECORDS = 1 << 13, /* no superblock makes more: VEX stops at 100 instructions */
    ADDRESS_BITS = 48,
    WRITE_BIT = 63,
    MAX_LOADS_AN_INSTRUCTION = 64,
};

static ULong buffer[BUFFER_RECORDS];
static ULong *cursor = buffer;
static Int trace_fd = -1;

static void flush_buffer(void)
{
    const UChar *from = (const UChar *)buffer;
    SizeT left = (const UChar *)cursor - from;

    cursor = buffer;
    while (left > 0 && trace_fd >= 0) {
        Int written = VG_(write)(trace_fd, from, left);
        if (written <= 0) {
            VG_(umsg)("memtrace: the reader has gone; references are lost from here on\n");
            VG_(close)(trace_fd);
            trace_fd = -1;
            return;
        }
        from += written;
        left -= written;
    }
}

/* What is known while one superblock is instrumented. */
typedef struct {
    IRSB *out;
    IRExpr *base;  /* cursor at the last point where its advance was not a constant */
    Int pending;   /* records stored from there on */
    Bool advanced; /* the cursor in memory is behind base + pending */
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
static void save_cursor(Block *block)
{
    if (!block->advanced)
        return;
    IRExpr *here = position(block);
    addStmtToIRSB(block->out, IRStmt_Store(Iend_LE, constant((Addr)&cursor), here));
    block->advanced = False;
}

static void begin_block(Block *block, IRSB *out)
{
    block->out = out;
    block->pending = 0;
    block->advanced = False;
    block->n_loads = 0;

    IRDirty *flush =
        unsafeIRDirty_0_N(0, "flush_buffer", VG_(fnptr_to_fnentry)(&flush_buffer), mkIRExprVec_0());
    flush->guard = assign(block, Ity_I1,
                          IRExpr_Binop(Iop_CmpLT64U,
                                       constant((Addr)(buffer + BUFFER_RECORDS - MARGIN_RECORDS)),
                                       load_cursor(block)));
    addStmtToIRSB(out, IRStmt_Dirty(flush));
    block->base = load_cursor(block);
}

/* Record one reference; with a guard only if that is true when the program gets here. */
static void record(Block *block, IRExpr *address, Int size, Bool is_write, IRExpr *guard)
{
    tl_assert(size > 0 && size < 1 << (WRITE_BIT - ADDRESS_BITS));
    tl_assert(block->pending < MARGIN_RECORDS);
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

static IRSB *memtrace_instrument(VgCallbackClosure *closure, IRSB *in,
                                 const VexGuestLayout *layout, const VexGuestExtents *extents,
                                 const VexArchInfo *host, IRType guest_word, IRType host_word)
{
    IRSB *out = deepCopyIRSBExceptStmts(in);
    Block block;
    Int i = 0;

    (void)closure, (void)layout, (void)extents, (void)host;
    tl_assert(guest_word == Ity_I64 && host_word == Ity_I64);
    while (i < in->stmts_used && in->stmts[i]->tag != Ist_IMark)
        addStmtToIRSB(out, in->stmts[i++]);
    begin_block(&block, out);
    for (; i < in->stmts_used; i++) {
        if (in->stmts[i]->tag == Ist_Exit)
            save_cursor(&block);
        else
            record_references(&block, in->stmts[i]);
        addStmtToIRSB(out, in->stmts[i]);
    }
    save_cursor(&block);
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
    return VG_INT_CLO(argument, "--trace-fd", trace_fd);
}

static void memtrace_print_usage(void)
{
    VG_(printf)("    --trace-fd=<number>       descriptor to write the records to (required)\n");
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
    VG_(atfork)(NULL, NULL, forget_in_child);
}

static void memtrace_fini(Int exit_code)
{
    (void)exit_code;
    flush_buffer();
}

static void memtrace_pre_clo_init(void)
{
    VG_(details_name)("memtrace");
    VG_(details_version)("1");
    VG_(details_description)("a writer of data references");
    VG_(details_copyright_author)("GPL-2.0-or-later");
    VG_(details_bug_reports_to)("the memsampd project");
    VG_(details_avg_translation_sizeB)(400);

    VG_(basic_tool_funcs)(memtrace_post_clo_init, memtrace_instrument, memtrace_fini);
    VG_(needs_command_line_options)(memtrace_process_option, memtrace_print_usage,
                                    memtrace_print_debug_usage);
}

VG_DETERMINE_INTERFACE_VERSION(memtrace_pre_clo_init)
