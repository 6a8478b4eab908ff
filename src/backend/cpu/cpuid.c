/* cpuid and the register state the operating system saves.
 *
 * A level needs both: the instructions, and an operating system that keeps the
 * wide registers across context switches (XCR0). Called at plan creation and by
 * doctor, never in a run. */
#include "backend/cpu/cpuid.h"

#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define ARCH_REQ_XCOMP_PERM 0x1023 /* of asm/prctl.h; older headers lack it */
#define XFEATURE_TILE_DATA 18      /* the bit of XCR0 */
#endif

#define XCR0_AVX 0x6u       /* XMM and YMM state */
#define XCR0_AVX512 0xE6u   /* and opmask, ZMM0-15 upper halves, ZMM16-31 */
#define XCR0_TILES 0x60000u /* tile configuration and tile data */

typedef struct leaf {
    unsigned a, b, c, d;
} leaf;

static leaf query(unsigned number, unsigned sub)
{
    leaf l = {0, 0, 0, 0};
    if (!__get_cpuid_count(number, sub, &l.a, &l.b, &l.c, &l.d)) {
        return (leaf){0, 0, 0, 0};
    }
    return l;
}

static unsigned enabled_state(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int has(unsigned word, unsigned bits)
{
    return (word & bits) == bits;
}

/* Linux gives the 8 KiB of tile data only to a process that asks; asking again changes nothing. The
 * permission is the process's: threads, those that run already too, have it from then on. */
static int tiles_permitted(void)
{
#if defined(__linux__)
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
#else
    return 0;
#endif
}

const char *qn_cpu_refusal(qn_isa isa)
{
    if (isa == QN_ISA_SCALAR) {
        return NULL;
    }
    const leaf one = query(1, 0), seven = query(7, 0), seven1 = query(7, 1);
    if (!has(one.c, 1u << 27)) { /* OSXSAVE */
        return "the operating system does not save extended registers";
    }
    const unsigned state = enabled_state();
    if (!has(one.c, 1u << 28 | 1u << 12 | 1u << 29) || !has(seven.b, 1u << 5)) {
        return "the processor lacks AVX2, FMA or F16C";
    }
    if (!has(state, XCR0_AVX)) {
        return "the operating system does not save AVX registers";
    }
    if (isa >= QN_ISA_AVX512) {
        if (!has(seven.b, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31)) {
            return "the processor lacks AVX-512 F, DQ, BW or VL";
        }
        if (!has(state, XCR0_AVX512)) {
            return "the operating system does not save AVX-512 registers";
        }
    }
    if (isa >= QN_ISA_AVX512VNNI && !has(seven.c, 1u << 11 | 1u << 1)) {
        return "the processor lacks AVX-512 VNNI or VBMI";
    }
    if (isa >= QN_ISA_AVX512BF16 && !has(seven1.a, 1u << 5)) {
        return "the processor lacks AVX-512 BF16";
    }
    if (isa >= QN_ISA_AMX) {
        if (!has(seven.d, 1u << 22 | 1u << 24 | 1u << 25) || !has(seven.c, 1u << 8)) {
            return "the processor lacks AMX tiles, AMX INT8, AMX BF16 or GFNI";
        }
        if (!has(state, XCR0_TILES)) {
            return "the operating system does not save AMX tiles";
        }
        if (!tiles_permitted()) {
            return "the operating system does not permit this process AMX tiles";
        }
    }
    return NULL;
}

int qn_cpu_is_intel(void)
{
    const leaf l = query(0, 0);
    return l.b == 0x756e6547 && l.d == 0x49656e69 && l.c == 0x6c65746e; /* GenuineIntel */
}

int qn_cpu_halves_512(void)
{
    const leaf vendor = query(0, 0);
    const unsigned family = query(1, 0).a >> 8 & 0xf, more = query(1, 0).a >> 20 & 0xff;
    return vendor.c == 0x444d4163 && family + more == 0x19; /* AuthenticAMD */
}

/* Intel's cores, as of Sapphire Rapids, begin half as many vdpbf16ps a clock as multiply-adds, AMD's from Zen 4 on as
 * many (docs/kernels.md). */
const char *qn_cpu_unsuited(qn_suits suits)
{
    return suits == QN_SUITS_FAST_BF16_DOTS && qn_cpu_is_intel()
               ? "this processor multiplies floats faster than pairs of bf16"
               : NULL;
}

void qn_cpu_name(char name[49])
{
    memset(name, 0, 49);
    for (unsigned i = 0; i < 3; i++) {
        const leaf l = query(0x80000002u + i, 0);
        memcpy(name + 16 * i, &l, 16);
    }
}

#else

const char *qn_cpu_refusal(qn_isa isa)
{
    return isa == QN_ISA_SCALAR ? NULL : "not an x86-64 processor";
}

int qn_cpu_is_intel(void)
{
    return 0;
}

int qn_cpu_halves_512(void)
{
    return 0;
}

const char *qn_cpu_unsuited(qn_suits suits)
{
    (void)suits;
    return NULL;
}

void qn_cpu_name(char name[49])
{
    memset(name, 0, 49);
}

#endif
