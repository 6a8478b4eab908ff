/* What the device's memory gives: reading and copying by every thread, 16 bytes an
 * access, several in flight. The sums keep the reads from being removed. */
#define DEPTH 8

extern "C" __global__ void __launch_bounds__(512) qn_ceiling_read(const uint4 *from, unsigned long long words,
                                                                  unsigned int *sums)
{
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned int sum = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step * DEPTH) {
        uint4 v[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            v[d] = i + d * step < words ? from[i + d * step] : uint4();
        }
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            sum ^= v[d].x ^ v[d].y ^ v[d].z ^ v[d].w;
        }
    }
    if (sum == 0x12345678u) {
        sums[blockIdx.x] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(512) qn_ceiling_copy(const uint4 *from, unsigned long long words,
                                                                  uint4 *to)
{
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step * DEPTH) {
        uint4 v[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            v[d] = i + d * step < words ? from[i + d * step] : uint4();
        }
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (i + d * step < words) {
                to[i + d * step] = v[d];
            }
        }
    }
}
