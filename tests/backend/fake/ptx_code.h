/* PTX as instructions: what ptx_parse.c makes of a text and ptx_run.c runs, with ptx_math.c, ptx_memory.c,
 * ptx_tensor.c and ptx_warp.c. */
#ifndef QN_TESTS_FAKE_PTX_CODE_H
#define QN_TESTS_FAKE_PTX_CODE_H

#include "backend/fake/ptx.h"

enum { PTX_NAME = 96, PTX_OPERANDS = 8, PTX_WORDS = 12, PTX_DEPTH = 8 };

/* ---- types ---- */

#define PTX_TYPES(X)                                                                                                   \
    X(PRED, "pred", 1, 'p'), X(B8, "b8", 1, 'b'), X(B16, "b16", 2, 'b'), X(B32, "b32", 4, 'b'), X(B64, "b64", 8, 'b'), \
        X(U8, "u8", 1, 'u'), X(U16, "u16", 2, 'u'), X(U32, "u32", 4, 'u'), X(U64, "u64", 8, 'u'), X(S8, "s8", 1, 's'), \
        X(S16, "s16", 2, 's'), X(S32, "s32", 4, 's'), X(S64, "s64", 8, 's'), X(F16, "f16", 2, 'f'),                    \
        X(BF16, "bf16", 2, 'f'), X(F32, "f32", 4, 'f'), X(F64, "f64", 8, 'f'), X(F16X2, "f16x2", 4, 'v'),              \
        X(BF16X2, "bf16x2", 4, 'v'), X(E4M3X2, "e4m3x2", 2, 'v'), X(E5M2X2, "e5m2x2", 2, 'v'),                         \
        X(E4M3, "e4m3", 1, 'f'), X(E5M2, "e5m2", 1, 'f'), X(TF32, "tf32", 4, 'f')

#define PTX_TYPE_ID(id, name, bytes, kind) PTX_##id
typedef enum ptx_type { PTX_NO_TYPE = 0, PTX_TYPES(PTX_TYPE_ID), PTX_TYPE_COUNT } ptx_type;

typedef struct ptx_type_info {
    const char *name;
    int bytes;
    char kind; /* p: predicate, b: bits, u, s: integers, f: a float, v: several in one */
} ptx_type_info;

extern const ptx_type_info ptx_types[PTX_TYPE_COUNT];

/* ---- operations: the first word of an instruction ---- */

#define PTX_OPS(X)                                                                                                     \
    X(MOV, "mov"), X(CVT, "cvt"), X(CVTA, "cvta"), X(ADD, "add"), X(SUB, "sub"), X(MUL, "mul"), X(MAD, "mad"),         \
        X(FMA, "fma"), X(DIV, "div"), X(REM, "rem"), X(MIN, "min"), X(MAX, "max"), X(NEG, "neg"), X(ABS, "abs"),       \
        X(NOT, "not"), X(AND, "and"), X(OR, "or"), X(XOR, "xor"), X(SHL, "shl"), X(SHR, "shr"), X(SHF, "shf"),         \
        X(SETP, "setp"), X(SELP, "selp"), X(BFE, "bfe"), X(BFI, "bfi"), X(PRMT, "prmt"), X(LOP3, "lop3"),              \
        X(POPC, "popc"), X(CLZ, "clz"), X(BREV, "brev"), X(DP4A, "dp4a"), X(EX2, "ex2"), X(LG2, "lg2"), X(RCP, "rcp"), \
        X(SQRT, "sqrt"), X(RSQRT, "rsqrt"), X(SIN, "sin"), X(COS, "cos"), X(COPYSIGN, "copysign"), X(LD, "ld"),        \
        X(ST, "st"), X(LDU, "ldu"), X(ATOM, "atom"), X(RED, "red"), X(BRA, "bra"), X(RET, "ret"), X(EXIT, "exit"),     \
        X(CALL, "call"), X(BAR, "bar"), X(BARRIER, "barrier"), X(SHFL, "shfl"), X(VOTE, "vote"),                       \
        X(ACTIVEMASK, "activemask"), X(REDUX, "redux"), X(ELECT, "elect"), X(MEMBAR, "membar"), X(FENCE, "fence"),     \
        X(GRIDDEPCONTROL, "griddepcontrol"), X(MAPA, "mapa"), X(PREFETCH, "prefetch"), X(MBARRIER, "mbarrier"),        \
        X(CP, "cp"), X(LDMATRIX, "ldmatrix"), X(STMATRIX, "stmatrix"), X(MMA, "mma"), X(SETMAXNREG, "setmaxnreg"),     \
        X(NANOSLEEP, "nanosleep"), X(TRAP, "trap"), X(CREATEPOLICY, "createpolicy"), X(WGMMA, "wgmma")

#define PTX_OP_ID(id, name) PTX_##id
typedef enum ptx_op { PTX_NO_OP = 0, PTX_OPS(PTX_OP_ID), PTX_RETURNED, PTX_OP_COUNT } ptx_op;

/* ---- words behind it that change what it does ---- */

#define PTX_WORD_LIST(X)                                                                                               \
    X(WIDE, "wide"), X(LO, "lo"), X(HI, "hi"), X(SAT, "sat"), X(SATFINITE, "satfinite"), X(RELU, "relu"),              \
        X(NAN, "NaN"), X(RNI, "rni"), X(RZI, "rzi"), X(RMI, "rmi"), X(RPI, "rpi"), X(RZ, "rz"), X(RM, "rm"),           \
        X(RP, "rp"), X(V2, "v2"), X(V4, "v4"), X(SHARED, "shared"), X(CTA_SHARED, "shared::cta"),                      \
        X(CLUSTER_SHARED, "shared::cluster"), X(GLOBAL, "global"), X(PARAM, "param"), X(LOCAL, "local"),               \
        X(CONST, "const"), X(TO, "to"), X(EQ, "eq"), X(NE, "ne"), X(LT, "lt"), X(LE, "le"), X(GT, "gt"), X(GE, "ge"),  \
        X(EQU, "equ"), X(NEU, "neu"), X(LTU, "ltu"), X(LEU, "leu"), X(GTU, "gtu"), X(GEU, "geu"), X(NUM, "num"),       \
        X(ISNAN, "nan"), X(AND_WITH, "and"), X(OR_WITH, "or"), X(XOR_WITH, "xor"), X(BFLY, "bfly"), X(IDX, "idx"),     \
        X(UP, "up"), X(DOWN, "down"), X(BALLOT, "ballot"), X(ANY, "any"), X(ALL, "all"), X(ADDS, "add"),               \
        X(MINS, "min"), X(MAXS, "max"), X(EXCH, "exch"), X(CAS, "cas"), X(INC, "inc"), X(ARRIVE, "arrive"),            \
        X(WAIT, "wait"), X(SYNC, "sync"), X(WARP, "warp"), X(CLUSTER, "cluster"), X(REDS, "red"), X(POPCS, "popc"),    \
        X(INIT, "init"), X(INVAL, "inval"), X(EXPECT_TX, "expect_tx"), X(COMPLETE_TX, "complete_tx"),                  \
        X(TRY_WAIT, "try_wait"), X(TEST_WAIT, "test_wait"), X(PARITY, "parity"), X(ASYNC, "async"), X(BULK, "bulk"),   \
        X(XORSIGN, "xorsign"), X(CLAMP, "clamp"), X(WRAP, "wrap"), X(PACK, "pack"), X(RNA, "rna"), X(NOINC, "noinc"),  \
        X(TRANS, "trans"), X(X1, "x1"), X(X2, "x2"), X(X4, "x4"), X(SYNCS, "synchronous"), X(L, "l"), X(R, "r"),       \
        X(HINT, "L2::cache_hint"), X(M16N8K16, "m16n8k16"), X(M16N8K32, "m16n8k32"), X(M16N8K8, "m16n8k8"),     \
        X(TENSOR, "tensor"), X(RANK_3, "3d"), X(MULTICAST, "multicast::cluster"), X(PREFETCHES, "prefetch"),           \
        X(MMA_ASYNC, "mma_async")

#define PTX_WORD_ID(id, name) PTX_W_##id
typedef enum ptx_word { PTX_NO_WORD = 0, PTX_WORD_LIST(PTX_WORD_ID), PTX_WORD_COUNT } ptx_word;

/* ---- instructions ---- */

typedef enum ptx_kind {
    PTX_NONE = 0,
    PTX_REGISTER, /* index */
    PTX_NUMBER,   /* value */
    PTX_SYMBOL,   /* index of the symbol, value added */
    PTX_MEMORY,   /* of, with value added */
    PTX_VECTOR,   /* parts */
    PTX_LABEL     /* value: place in the code */
} ptx_kind;

typedef struct ptx_operand {
    ptx_kind kind;
    int index;   /* of a register or symbol */
    int negated; /* !p */
    int second;  /* the register behind p|q, or -1 */
    int base;    /* PTX_MEMORY: PTX_REGISTER or PTX_SYMBOL, or 0 */
    uint64_t value;
    int count; /* PTX_VECTOR: of registers, -1 where none is wanted; PTX_MEMORY: of coordinates in a tensor */
    int *parts;
} ptx_operand;

typedef struct ptx_instruction {
    ptx_op op;
    ptx_type type, from; /* the last type and the one before it; cvt: to and from */
    ptx_type types[4];   /* all, in their order */
    uint64_t words[2];   /* set of ptx_word */
    int guard, guard_negated;
    int columns, depth;    /* of a product of warpgroups */
    int count;
    ptx_operand operand[PTX_OPERANDS];
    int line;
} ptx_instruction;

static inline int ptx_has(const ptx_instruction *i, ptx_word word)
{
    return (int)(i->words[word / 64] >> word % 64 & 1);
}

typedef enum ptx_space { PTX_IN_SHARED, PTX_IN_DYNAMIC, PTX_IN_GLOBAL, PTX_IN_PARAMETERS, PTX_IN_LOCAL } ptx_space;

typedef struct ptx_symbol {
    char name[PTX_NAME];
    int scope;
    ptx_space space;
    size_t at, bytes; /* offset; of global memory in the module's own */
} ptx_symbol;

typedef struct ptx_copy {
    size_t from, to, bytes; /* in a lane's local memory */
} ptx_copy;

struct ptx_entry {
    const ptx_module *module;
    char name[PTX_NAME];
    int is_kernel, start; /* place in the code */
    int parameters;
    size_t parameter_at[32], parameter_size[32], parameter_bytes; /* of a kernel */
    int arguments, results;                                       /* symbols of a function that is called */
    int argument[32], result[32];
};

/* Registers of each warp that hold what a kernel may ask of its place. */
#define PTX_SPECIAL_LIST(X)                                                                                            \
    X(TID_X, "%tid.x"), X(TID_Y, "%tid.y"), X(TID_Z, "%tid.z"), X(NTID_X, "%ntid.x"), X(NTID_Y, "%ntid.y"),            \
        X(NTID_Z, "%ntid.z"), X(CTAID_X, "%ctaid.x"), X(CTAID_Y, "%ctaid.y"), X(CTAID_Z, "%ctaid.z"),                  \
        X(NCTAID_X, "%nctaid.x"), X(NCTAID_Y, "%nctaid.y"), X(NCTAID_Z, "%nctaid.z"), X(LANEID, "%laneid"),            \
        X(WARPID, "%warpid"), X(CLUSTER_RANK, "%cluster_ctarank"), X(CLUSTER_SIZE, "%cluster_nctarank"),               \
        X(CLUSTERID_X, "%clusterid.x"), X(NCLUSTERID_X, "%nclusterid.x"), X(CLUSTER_CTAID_X, "%cluster_ctaid.x"),      \
        X(CLUSTER_NCTAID_X, "%cluster_nctaid.x"), X(CLOCK, "%clock"), X(LANEMASK_LT, "%lanemask_lt"),                  \
        X(SMID, "%smid"), X(DYNAMIC_BYTES, "%dynamic_smem_size")

enum { PTX_SPECIAL_LIST(PTX_OP_ID), PTX_SPECIALS };

struct ptx_module {
    char *text;
    ptx_instruction *code;
    int instructions, code_room;
    ptx_symbol *symbols;
    int symbol_count, symbol_room;
    ptx_entry entries[8];
    int entry_count;
    uint8_t *width; /* bytes of registers */
    int registers, register_room;
    struct ptx_constant {
        int index;
        uint64_t value;
    } * constants; /* numbers that stand in vectors: registers that hold them */
    int constant_count, constant_room;
    size_t shared, local; /* static shared memory of a block, local memory of a lane */
    size_t dynamic_align; /* what dynamic shared memory asks for */
    char *memory;         /* global memory of the module's own */
    size_t memory_bytes;
};

#endif
