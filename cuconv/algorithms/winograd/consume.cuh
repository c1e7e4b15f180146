// The consumers of fp16x3_winograd: two warpgroups that multiply half of the points each, add up, and write, or publish
// their sums to another cluster. Each fetches its own weights.
#pragma once

#include "winograd/write.cuh"

__device__ __forceinline__ int first_filter(int) { return 0; }  // both warpgroups have all filters of the tile

#include "common/fp16_rescale.cuh"

// The weights of a warpgroup's points. One thread copies them, a stage ahead of their use. All threads count, which
// keeps the count in uniform registers.
struct WeightFetcher {
    const char *const rows, *next;  // in the workspace, in the order of their use, again and again
    const char* const end;
    const unsigned stages;  // address in shared memory
    Shared& shared;
    const int warpgroup;

    // Copies the weights of the next point in order to a stage that is free; `point` counts from the current chunk's
    // first, and goes on in the next chunks.
    __device__ __forceinline__ void fetch_next(int point, int stage, bool fetching) {
        if (fetching)
            fetch(stages + stage * WEIGHT_STAGE_BYTES, next + point % GROUP_POINTS * ROW_BYTES, ROW_BYTES,
                  shared.full_weights[warpgroup] + stage);
        if (point % GROUP_POINTS < GROUP_POINTS - 1) return;
        next += CLUSTER * POINTS * ROW_BYTES;
        if (next >= end) next -= end - rows;
    }
};

__device__ __forceinline__ int load_int(unsigned address) {
    int value;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

// Rows of a filter whose products are unrolled. With four points a warpgroup, the descriptors of several rows would not
// fit the uniform registers.
constexpr int UNROLLED_ROWS = KW == 3 ? KH : 1;

struct Consumer {
    const Geometry& g;
    const Output output;
    const unsigned input_stages;  // address in shared memory
    char* const weight_stages;    // stages of both warpgroups
    Shared& shared;
    const int warpgroup;
    const ClusterShare share;
    const unsigned zero;  // 0, but the compiler cannot know
    WeightFetcher weights;

    // This thread's number in the warpgroup.
    __device__ __forceinline__ int thread() const { return thread_number() % WARPGROUP; }

    // Starts chain = the products of one point and 16 channels, the small ones first.
    __device__ __forceinline__ void start_products(Chain& chain, unsigned input, unsigned weights) const {
        const unsigned input_start = core_descriptor(input, OCTET_BYTES);
        const unsigned weight_start = core_descriptor(weights, BF * 16);
        wgmma_fence();
        unsigned x = input_start, w = weight_start;  // in units of 16 bytes
#pragma unroll UNROLLED_ROWS
        for (int ky = 0; ky < KH; ++ky, x += g.pitch, w += 2 * BF) {
            wgmma_f16(chain, w + WEIGHT_PART / 16, x, ky > 0);
            wgmma_f16(chain, w, x + INPUT_PART / 16, 1);
        }
        x = input_start + zero, w = weight_start + zero;
#pragma unroll UNROLLED_ROWS
        for (int ky = 0; ky < KH; ++ky, x += g.pitch, w += 2 * BF) wgmma_f16(chain, w, x, 1);
        wgmma_commit();
    }

    // Gives a stage of input back to `filler`, the block that fills it next. If that is another block, this one's
    // barrier must expect the bytes that will come. It may do so now: this chunk has come, so the barrier counts for
    // the next one, and nothing is sent before all consumers have released the stage.
    __device__ __forceinline__ void release(int stage, int filler) const {
        if (CLUSTER > 1 && warpgroup == 0 && filler != block_rank())
            barrier_expect(shared.full_input + stage, SENT_BYTES);
        if (CLUSTER > 1) barrier_arrive_in(shared.empty_input + stage, filler);
        else barrier_arrive(shared.empty_input + stage);
    }

    // sums = the products of `chunks` chunks from a unit of work on, all of one tile. count: chunks of the share before
    // it. left: chunks of the share from it on. Returns what is known of these chunks.
    __device__ __forceinline__ Known multiply(Sums& sums, const WorkUnit& from, unsigned count, int left, int chunks) {
        Known known;
        PipelineState<IN_STAGES> input(count, 1);
        PipelineState<WEIGHT_STAGES> filter(count, GROUP_POINTS);
        int filler = (count + IN_STAGES) % CLUSTER;  // the block that fills the chunk's stage next
        Rescale rescale(shared.filter_scales + from.tile_chunk(g) * SCALE_FILTERS + block_rank() * BF, warpgroup,
                        thread());
        rescale.prefetch();
        const bool first = thread() == 0;
#pragma unroll
        for (int point = 0; point < GROUP_POINTS; ++point)
#pragma unroll
            for (int i = 0; i < WGMMA_SUMS; ++i) sums[point][i] = 0.0f;
#pragma unroll 1
        for (; chunks > 0; --chunks, --left) {
            barrier_wait(shared.full_input + input.stage, input.parity);
            // Before any thread can release the stage.
            const int input_scale = load_int(input_stages + input.stage * STAGE_BYTES + SCALE_OFFSET);
            const unsigned chunk = input_stages + warpgroup * GROUP_POINTS * POINT_BYTES + input.stage * STAGE_BYTES;
#pragma unroll
            for (int point = 0; point < GROUP_POINTS; ++point) {
                barrier_wait(shared.full_weights[warpgroup] + filter.stage, filter.parity);
                Chain chain;
                start_products(chain, chunk + point * POINT_BYTES, weights.stages + filter.stage * WEIGHT_STAGE_BYTES);
                // While the products are under way, into the stage of the products before.
                const int ahead = point + WEIGHT_STAGES - 1;
                weights.fetch_next(ahead, filter.previous_stage(),
                                   first && (ahead < GROUP_POINTS || left > ahead / GROUP_POINTS));
                __syncwarp();
                filter.advance();
                if (point == 0) {
                    rescale.update(input_scale);
                    known.include(rescale.chunk_scales, input_scale, warpgroup);
                    if (chunks > 1) rescale.prefetch();
                }
                wgmma_wait(chain);
                if (point == GROUP_POINTS - 1) {
                    if (first && (CLUSTER == 1 || left > IN_STAGES)) release(input.stage, filler);
                    input.advance();
                    filler = filler + 1 < CLUSTER ? filler + 1 : 0;
                }
                rescale.accumulate(sums[point], chain);
            }
        }
#pragma unroll
        for (int point = 0; point < GROUP_POINTS; ++point) rescale.finish(sums[point], NO_DOUBT);
        return known;
    }

    // The block's number in the order of shares.
    __device__ __forceinline__ int block_number() const { return share_number() * CLUSTER + block_rank(); }

    // This thread's partial sums in the workspace, as a block publishes them.
    __device__ __forceinline__ float4* partial_sums(int block) const {
        return shared.sums + (int64)block * (MAX_SUMS / 4) + (warpgroup * (MAX_SUMS / 8) + thread());
    }

    // This thread's number behind its warpgroup's sums. end: where its own would go on.
    template <class Float4>
    __device__ __forceinline__ auto own_number(Float4* end) const {
        return reinterpret_cast<int*>(const_cast<float4*>(end) - thread()) + thread();
    }

    // Publishes the sums to the block that began the tile, and behind them what each thread knows of its chunks.
    __device__ __forceinline__ void publish(const Sums& sums, const Known& known) const {
        float4* to = partial_sums(block_number());
#pragma unroll
        for (int point = 0; point < GROUP_POINTS; ++point)
#pragma unroll
            for (int i = 0; i < WGMMA_SUMS; i += 4, to += WARPGROUP)
                *to = make_float4(sums[point][i], sums[point][i + 1], sums[point][i + 2], sums[point][i + 3]);
        *own_number(to) = known.scale;
        warpgroup_barrier(warpgroup);
        if (thread() == 0)  // the flag's release covers what the barrier has shown this thread: the warpgroup's stores
            set_flag(shared.flags + block_number() * 2 + warpgroup);
    }

    // Adds the partial sums of the blocks with later shares, in order, up to the tile's end.
    __device__ __forceinline__ void accumulate(Sums& sums, Known& known, int unit, int tile_end) const {
        for (int number = share_number() + 1; unit < tile_end; ++number) {
            const int block = number * CLUSTER + block_rank();
            if (thread() == 0) {
                wait_for_flag(shared.flags + block * 2 + warpgroup);
                if (PREPARED) shared.flags[block * 2 + warpgroup] = 0;  // as take_flag, with its address read anew
            }
            warpgroup_barrier(warpgroup);
            const float4* from = partial_sums(block);
#pragma unroll
            for (int point = 0; point < GROUP_POINTS; ++point)
#pragma unroll
                for (int i = 0; i < WGMMA_SUMS; i += 4, from += WARPGROUP) {
                    const float4 part = __ldcg(from);
                    sums[point][i] += part.x, sums[point][i + 1] += part.y;
                    sums[point][i + 2] += part.z, sums[point][i + 3] += part.w;
                }
            known.include(__ldcg(own_number(from)));
            unit = ClusterShare(g, number).end;
        }
    }

    // Writes the tile of a unit of work. The asm keeps the compiler from finding the unit's place before the products,
    // where it would take registers.
    template <class Function>
    __device__ __forceinline__ void write_tile(const Sums& sums, const Known& known, int unit, float* staging,
                                               const Function& function) const {
        asm volatile("" : "+r"(unit));
        const WorkUnit of(unit, g);
        const int first_filter = of.filter_tile * SCALE_FILTERS + block_rank() * BF;
        write(output, g, of.spatial_tile * CELLS, first_filter, sums, shared, known, staging, warpgroup, function);
    }

    __device__ __forceinline__ void run() {
        for (int i = 0; i < WEIGHT_STAGES - 1; ++i)
            weights.fetch_next(i, i, thread() == 0 && share.begin + i / GROUP_POINTS < share.end);
        __syncwarp();
        if (PREPARED) wait_for_weights();
        for (int unit = share.begin; unit < share.end;) {
            const WorkUnit from(unit, g);
            const int chunks = min(g.chunks - from.chunk, share.end - unit);
            Sums sums;
            Known known = multiply(sums, from, unit - share.begin, share.end - unit, chunks);
            unit += chunks;
            if (from.chunk > 0) {
                publish(sums, known);
            } else {
                if (chunks < g.chunks) accumulate(sums, known, unit, unit - chunks + g.chunks);
                const int stage = PipelineState<WEIGHT_STAGES>(unit - share.begin, GROUP_POINTS).previous_stage();
                float* const staging = reinterpret_cast<float*>(weight_stages + stage * WEIGHT_STAGE_BYTES);
                // 5x5 has no registers for other activations: activate_written computes them.
                if (KW == 5 || AtLeast::is(output.activation))
                    write_tile(sums, known, unit - chunks, staging, AtLeast(output.activation));
                else
                    write_tile(sums, known, unit - chunks, staging, output.activation);
            }
        }
    }
};
