/* Runs that launch what none before did: each is tried on the context's device over again, but absent, where all that
 * it is asked to launch is noted. Launches are the same when the function of the program is, clusters are, and how
 * often it goes around: K in powers of four, and whether few multiprocessors make it go on from tile to tile. */
#ifndef QN_TESTS_LAUNCHES_H
#define QN_TESTS_LAUNCHES_H

#include "backend/device_cases.h"

enum { MOST_LAUNCHES = 4096 };

typedef struct launch {
    cu_function function;
    uint32_t cluster;
    int cooperative, few, deep;
} launch;

static struct launches {
    qn_ctx *ctx; /* of the absent device */
    int32_t sms; /* of the real one; tests take some away */
    struct {
        cu_module module; /* every program is one */
        const char *name;
    } functions[MOST_LAUNCHES];
    launch met[MOST_LAUNCHES];
    int modules, function_count, count, deep;
} launches;

static cu_result note_module(cu_module *module, const void *image)
{
    (void)image;
    *module = (cu_module)(uintptr_t)++launches.modules;
    return CU_SUCCESS;
}

static cu_result note_function(cu_function *function, cu_module module, const char *name)
{
    int i = 0;
    while (i < launches.function_count &&
           (launches.functions[i].module != module || strcmp(launches.functions[i].name, name) != 0)) {
        i++;
    }
    assert_true(i < MOST_LAUNCHES);
    launches.functions[i].module = module;
    launches.functions[i].name = name;
    launches.function_count += i == launches.function_count;
    *function = (cu_function)(void *)&launches.functions[i];
    return CU_SUCCESS;
}

static cu_result note_launch(const cu_launch_config *config, cu_function function, void **parameters, void **extra)
{
    const int32_t sms = qn_cuda_get(launches.ctx)->device.sms;
    const uint32_t blocks = config->grid[0] * config->grid[1] * config->grid[2];
    launch l = {.function = function, .few = sms < launches.sms && blocks <= 2 * (uint32_t)sms, .deep = launches.deep};
    (void)parameters, (void)extra;
    for (uint32_t a = 0; a < config->attribute_count; a++) {
        const cu_launch_attribute *is = &config->attributes[a];
        l.cluster = is->id == CU_LAUNCH_CLUSTER_DIMENSION ? is->value.cluster.x : l.cluster;
        l.cooperative |= is->id == CU_LAUNCH_COOPERATIVE;
    }
    int i = 0;
    while (i < launches.count && memcmp(&launches.met[i], &l, sizeof l) != 0) {
        i++;
    }
    assert_true(i < MOST_LAUNCHES);
    launches.met[i] = l;
    launches.count += i == launches.count;
    return CU_SUCCESS;
}

/* The options are those of the real device's context. */
static void launches_open(const qn_ctx_options *options)
{
    qn_error error = {0};
    qn_cuda *cuda;
    qn_ctx_options absent = *options;
    absent.cuda_target = qn_cuda_target_name(qn_cuda_get(ctx)->device.target);
    must(qn_ctx_create(&absent, &launches.ctx, &error), &error, "context");
    must(qn_cuda_require(launches.ctx, &cuda, &error), &error, "absent device");
    launches.sms = qn_cuda_get(ctx)->device.sms;
    cuda->cu.ModuleLoadData = note_module;
    cuda->cu.ModuleGetFunction = note_function;
    cuda->cu.LaunchKernelEx = note_launch;
}

static int launches_another(const qn_kernel *kernel, const char *text, const qn_op_desc *desc, size_t gap, size_t shift)
{
    qn_ctx *const real = ctx;
    const int before = launches.count;
    problem p;
    qn_args args;
    qn_error error = {0};
    void *workspace = NULL;
    qn_cuda_get(launches.ctx)->device = qn_cuda_get(real)->device;
    ctx = launches.ctx;
    problem_shape(&p, text);
    launches.deep = 0;
    for (int64_t k = shift || p.sizes.k % 16 ? 0 : p.sizes.k; k > 0; k /= 4) {
        launches.deep++;
    }
    qn_plan *const plan = plan_of(kernel, text, desc);
    place_operands(&p, gap, shift, &args, text);
    const size_t bytes = qn_plan_workspace_bytes(plan, p.sizes.m, 1);
    must(qn_device_alloc(ctx, bytes, &workspace, &error), &error, text);
    must(qn_run(plan, &args, workspace, bytes, NULL, &error), &error, text);
    qn_device_free(ctx, workspace);
    remove_operands(&p);
    qn_plan_destroy(plan);
    problem_free(&p);
    ctx = real;
    return launches.count > before;
}

#endif
