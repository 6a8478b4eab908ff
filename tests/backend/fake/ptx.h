/* Device code on a CPU: an interpreter of PTX, so that kernels are tested where there is no GPU.
 *
 * A warp goes instruction by instruction, its 32 lanes together; where they part, those that are furthest behind go
 * first. Warps and blocks take turns, in an order that a seed shuffles. Global memory is the process's own, so that a
 * sanitizer sees what a kernel touches; shared memory is a block's allocation, poisoned before. Copies of the copy
 * engine are done when they are asked for, so that a wait left out is not noticed, nor is a race that the order of
 * turns does not bring out. What an instruction is not known to do ends the launch with a sentence.
 *
 * Not there: tensor maps and their copies, products of warpgroups, textures. */
#ifndef QN_TESTS_FAKE_PTX_H
#define QN_TESTS_FAKE_PTX_H

#include <stddef.h>
#include <stdint.h>

typedef struct ptx_module ptx_module;
typedef struct ptx_entry ptx_entry;

typedef struct ptx_geometry {
    uint32_t grid[3], block[3], cluster, shared_bytes; /* cluster: blocks along x, 1: none */
} ptx_geometry;

/* NULL: what could not be read stands in why. */
ptx_module *ptx_load(const char *text, char *why, size_t why_bytes);
void ptx_unload(ptx_module *module);

/* NULL: there is no such entry. */
const ptx_entry *ptx_find(const ptx_module *module, const char *name);

/* Of the shared memory that the code names. */
size_t ptx_shared_bytes(const ptx_entry *entry);

/* Parameters lie one after the other, each aligned, as ptx_pack() puts them. */
size_t ptx_parameter_bytes(const ptx_entry *entry);
void ptx_pack(const ptx_entry *entry, void *const *parameters, void *to);

/* 0: the kernel has run. */
int ptx_run(const ptx_entry *entry, const ptx_geometry *geometry, const void *parameters, uint32_t seed, char *why,
            size_t why_bytes);

#endif
