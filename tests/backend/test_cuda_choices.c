/* Programs of random shapes for every target, without a device: each kernel that takes a descriptor names programs that
 * fit a plan and the device's shared memory, whatever formats and sizes meet. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "backend/cuda/cuda.h"

enum { CASES = 4000, LEAST = 1000 };

static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

#define PICK(...) ((const int[]){__VA_ARGS__})[below(sizeof((const int[]){__VA_ARGS__}) / sizeof(int))]

static void random_case(char *text, size_t room)
{
    static const char *const x[] = {"", " x=bf16", " x=f32", " x=f16", " x=i8"}, *const out[] = {"", " out=f32",
                                                                                                 " out=bf16"};
    static const char *const plain[] = {"block_scaled_mm", "scaled_mm", "dense_mm", "nvfp4_mm", "mxfp4_mm"};
    static const char *const lattice[] = {"", " codebook=E8P12RVQ4B", " codebook=E8P12RVQ3B"};
    char shape[96];
    snprintf(shape, sizeof shape, "m=%d n=%d k=%d%s%s", PICK(1, 2, 3, 8, 17, 33, 64, 65, 300, 4096),
             PICK(1, 7, 8, 16, 64, 72, 256, 300, 4096, 13824, 28672, 100000),
             PICK(1, 8, 16, 40, 64, 128, 192, 256, 1040, 4096, 5120, 8192, 28672, 100352), x[below(5)], out[below(3)]);
    switch (below(8)) {
    case 0: snprintf(text, room, "vq_mm %s format=gptvq", shape); break;
    case 1:
        snprintf(text, room, "vq_mm %s format=quip_e8p%s%s", shape, lattice[below(3)], below(2) ? " SU=1 SV=1" : "");
        break;
    case 2:
        snprintf(text, room, "vq_mm %s format=vptq num_centroids=%d vector_len=%d", shape, PICK(16, 256, 4096, 65536),
                 PICK(1, 2, 4, 6, 8, 12, 16));
        break;
    case 3:
        snprintf(text, room, "vq_attention m=%d n=%d k=%d e=%d g=%d channels=%d", PICK(1, 2, 5), PICK(1, 64, 4096),
                 PICK(8, 64, 128, 256), PICK(1, 8, 32), PICK(1, 8, 32), PICK(2, 4, 8));
        break;
    case 4: snprintf(text, room, "%s %s", plain[below(5)], shape); break;
    default:
        snprintf(text, room, "vq_mm %s num_codebooks=%d nbits_per_codebook=%d in_group_size=%d out_group_size=%d%s",
                 shape, PICK(1, 1, 2, 3, 4, 8), PICK(1, 4, 5, 8, 8, 12, 16), PICK(1, 2, 4, 8, 16, 32),
                 PICK(1, 1, 1, 2, 4), below(3) ? "" : " codes=u8");
    }
}

/* How many kernels and targets took it. */
static int choose(const char *text, const qn_op_desc *desc)
{
    static qn_cuda_program programs[QN_CUDA_PROGRAMS];
    const qn_kernel *kernel;
    int taken = 0;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        const qn_cuda_impl *impl = kernel->impl;
        for (int t = 0; t < QN_SM_COUNT && kernel->op == desc->op && !kernel->accepts(kernel, desc); t++) {
            if (!(impl->targets & QN_SM_BIT(t))) {
                continue;
            }
            const qn_cuda_device device = qn_cuda_typical_device((qn_cuda_target)t);
            memset(programs, 0, sizeof programs);
            const int32_t count = impl->programs(kernel, desc, &device, programs);
            if (count < 1 || count > QN_CUDA_PROGRAMS) {
                fail_msg("%s, %s: %d programs", text, kernel->name, (int)count);
            }
            for (int32_t p = 0; p < count; p++) {
                if (programs[p].shared_bytes < 0 || programs[p].shared_bytes > (int32_t)device.shared_bytes) {
                    fail_msg("%s, %s: %s takes %d bytes of shared memory, there are %d", text, kernel->name,
                             programs[p].entry, (int)programs[p].shared_bytes, (int)device.shared_bytes);
                }
            }
            taken++;
        }
    }
    return taken;
}

static void every_shape_has_programs(void **state)
{
    (void)state;
    int taken = 0;
    for (int i = 0; i < CASES; i++) {
        char text[256];
        qn_op_desc desc;
        qn_shape shapes[QN_MAX_OUT];
        qn_sizes sizes;
        random_case(text, sizeof text);
        if (qn_op_desc_parse(text, &desc, NULL) == QN_OK && qn_op_desc_check(&desc, shapes, &sizes, NULL) == QN_OK) {
            taken += choose(text, &desc);
        }
    }
    assert_true(taken > LEAST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_has_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
