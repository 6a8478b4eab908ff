/* One quantised matrix product with libquern, from description to result:
 * context, descriptor, plan, pack, run, explain.
 *
 *     cc scaled_mm.c $(pkg-config --cflags --libs quern) -o scaled_mm
 *
 * d[M,N] = scale_a[M] * scale_b[N] * sum over k of a[M,K] * b[N,K], a and b INT8. */
#include <stdio.h>
#include <stdlib.h>

#include <quern/quern.h>

enum { M = 2, N = 3, K = 64 };

/* 64-byte aligned memory of at least one byte. */
static void *aligned(size_t bytes)
{
    return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

int main(void)
{
    static int8_t a[M][K], b[N][K];
    static float scale_a[M], scale_b[N], d[M][N];
    for (int k = 0; k < K; k++) {
        for (int m = 0; m < M; m++) {
            a[m][k] = (int8_t)(k % 5 - 2 + m);
        }
        for (int n = 0; n < N; n++) {
            b[n][k] = (int8_t)(k % 7 - 3 + n);
        }
    }
    for (int m = 0; m < M; m++) {
        scale_a[m] = 0.5f;
    }
    for (int n = 0; n < N; n++) {
        scale_b[n] = 0.25f;
    }

    int failed = 1;
    qn_error error = {0};
    qn_ctx *ctx = NULL;
    qn_plan *plan = NULL;
    void *blob = NULL, *workspace = NULL;
    const int32_t slot_a = qn_op_in_slot(QN_OP_SCALED_MM, "a"), slot_b = qn_op_in_slot(QN_OP_SCALED_MM, "b");
    const int32_t slot_sa = qn_op_in_slot(QN_OP_SCALED_MM, "scale_a");
    const int32_t slot_sb = qn_op_in_slot(QN_OP_SCALED_MM, "scale_b");

    /* What to compute: the operator, its attributes and the shapes of its inputs. */
    qn_op_desc desc;
    qn_op_desc_init(&desc, QN_OP_SCALED_MM);
    desc.in[slot_a] = qn_shape_make(QN_I8, 2, M, K, 1, 1);
    desc.in[slot_b] = qn_shape_make(QN_I8, 2, N, K, 1, 1);
    desc.in[slot_sa] = qn_shape_make(QN_F32, 2, M, 1, 1, 1);
    desc.in[slot_sb] = qn_shape_make(QN_F32, 2, N, 1, 1, 1);
    desc.attr[QN_ATTR_OUT].i = QN_OUT_F32;

    if (qn_ctx_create(NULL, &ctx, &error) || qn_plan_create(ctx, &desc, NULL, &plan, &error)) {
        goto done;
    }

    /* The operands, and the weights packed once. */
    qn_args args = {0};
    args.in[slot_a] = qn_view_make(a, &desc.in[slot_a]);
    args.in[slot_b] = qn_view_make(b, &desc.in[slot_b]);
    args.in[slot_sa] = qn_view_make(scale_a, &desc.in[slot_sa]);
    args.in[slot_sb] = qn_view_make(scale_b, &desc.in[slot_sb]);
    const qn_shape out = qn_shape_make(QN_F32, 2, M, N, 1, 1);
    args.out[0] = qn_mut_view_make(d, &out);
    const size_t pack_bytes = qn_plan_pack_bytes(plan), work_bytes = qn_plan_workspace_bytes(plan, M, 1);
    blob = aligned(pack_bytes);
    workspace = aligned(work_bytes);
    if (!blob || !workspace) {
        goto done;
    }
    if (pack_bytes) {
        if (qn_pack(plan, &args, blob, pack_bytes, &error)) {
            goto done;
        }
        args.packed = blob;
    }

    /* Run on the calling thread; qn_run allocates nothing. */
    if (qn_run(plan, &args, workspace, work_bytes, NULL, &error)) {
        goto done;
    }
    static char text[8192];
    qn_plan_explain(plan, text, sizeof text);
    printf("%s\n", text);
    failed = 0;
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < N; n++) {
            int32_t sum = 0;
            for (int k = 0; k < K; k++) {
                sum += a[m][k] * b[n][k];
            }
            const float want = (float)sum * 0.125f;
            printf("d[%d,%d] = %g\n", m, n, (double)d[m][n]);
            failed |= d[m][n] != want;
        }
    }
    puts(failed ? "the result is wrong" : "the result is right");

done:
    if (error.text[0]) {
        fprintf(stderr, "%s: %s\n", qn_status_name(error.status), error.text);
    }
    free(workspace);
    free(blob);
    qn_plan_destroy(plan);
    qn_ctx_destroy(ctx);
    return failed;
}
