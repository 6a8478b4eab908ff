/* Device code on a CPU: an interpreter of PTX, so that kernels are tested where there is no GPU.
 *
 * A warp goes instruction by instruction, its 32 lanes together; where they part, those that are furthest behind go
 * first. Warps and blocks take turns, in an order that a seed shuffles. Global memory is the process's own, so that a
 * sanitizer sees what a kernel touches; shared memory is a block's allocation, poisoned before. Copies of the copy
 * engine are done when they are asked for, so that a wait left out is not noticed, nor is a race that the order of
 * turns does not bring out. What an instruction is not known to do ends the launch with a sentence.
 *
 * Not there: tensors of other than three dimensions, operands of warpgroups that lie across their rows, textures. */
#ifndef QN_TESTS_FAKE_PTX_H
#define QN_TESTS_FAKE_PTX_H

#include <stddef.h>
#include <stdint.h>

/* What the stand-in driver's tensor maps hold: elements of some bytes, dims[0] of them beside each other, strides in
 * bytes from dims[1] on; a box, whose 16 bytes change places by what swizzle, 0 to 3, says of their lines. */
typedef struct ptx_tensor {
    uint64_t kind; /* PTX_TENSOR */
    uint64_t data, dims[3], strides[2];
    uint32_t box[3], bytes, swizzle;
} ptx_tensor;
#define PTX_TENSOR UINT64_C(0x726f736e65745851)

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
