// The part of fp16x3_winograd that multiplies, adds up, and hands the sums on.
#pragma once

#include "winograd/write.cuh"

__device__ __forceinline__ int first_filter(int) { return 0; }  // both warpgroups have all of the tile

#include "common/fp16_factors.cuh"

// The turn of a chunk of input, or of a point's weights, among as many places in shared memory, counted on: a remainder
// would take ten instructions.
template <int PLACES>
struct Turn {
    int slot, parity;  // parity: of how often all of them have been used

    // After so many units of `each` places.
    __device__ __forceinline__ Turn(unsigned units, unsigned each) {
        if (each % PLACES == 0)
            slot = 0, parity = units * (each / PLACES) & 1;
        else
            slot = units * each % PLACES, parity = units * each / PLACES & 1;
    }
    __device__ __forceinline__ void advance() {
        slot = slot + 1 < PLACES ? slot + 1 : 0;
        parity ^= slot == 0;
    }
    // That before, where those come that are fetched when it has been used.
    __device__ __forceinline__ int slot_before() const { return slot > 0 ? slot - 1 : PLACES - 1; }
};

// The weights of a warpgroup's positions, which one thread of it fetches, a place ahead of their use. All threads keep
// count, so that it is in the registers that a warp shares.
struct WeightFetcher {
    const char *const rows, *next;  // in the workspace: they lie in the order of their use, over and over
    const char* const end;
    const unsigned stages;
    Shared& shared;
    const int group;

    // That of a point, the next in order (from OWN on in a later chunk), to where this warpgroup has done with others.
    __device__ __forceinline__ void fetch_next(int point, int slot, bool fetching) {
        if (fetching)
            fetch(stages + slot * WEIGHT_STAGE_BYTES, next + point % OWN * ROW_BYTES, ROW_BYTES,
                  shared.full_weights[group] + slot);
        if (point % OWN < OWN - 1) return;
        next += CLUSTER * POINTS * ROW_BYTES;
        if (next >= end) next -= end - rows;
    }
};

__device__ __forceinline__ int load_int(unsigned address) {
    int value;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

// Rows of a filter without a branch between them: with four points a warpgroup the descriptors of more would not fit
// into the registers that a warp shares.
constexpr int AT_ONCE = KW == 3 ? KH : 1;

// One of the two warpgroups that multiply.
struct Consumer {
    const Geometry& g;
    const Output output;
    const unsigned input_stages;  // address in shared memory
    char* const all_weights;      // of both
    Shared& shared;
    const int group;
    const Part share;
    const unsigned zero;  // which the compiler cannot know
    WeightFetcher weights;

    // Of the warpgroup.
    __device__ __forceinline__ int thread() const { return thread_number() % GROUP; }

    // chain = the products of one position and 16 channels, small ones first.
    __device__ __forceinline__ void start_products(Chain& chain, unsigned input, unsigned weights) const {
        const unsigned input_start = core_descriptor(input, OCTET_BYTES), weight_start = core_descriptor(weights, BF * 16);
        wgmma_fence();
        unsigned x = input_start, w = weight_start;  // in units of 16 bytes
#pragma unroll AT_ONCE
        for (int ky = 0; ky < KH; ++ky, x += g.pitch, w += 2 * BF) {
            wgmma_f16(chain, w + WEIGHT_PART / 16, x, ky > 0);
            wgmma_f16(chain, w, x + INPUT_PART / 16, 1);
        }
        x = input_start + zero, w = weight_start + zero;
#pragma unroll AT_ONCE
        for (int ky = 0; ky < KH; ++ky, x += g.pitch, w += 2 * BF) wgmma_f16(chain, w, x, 1);
        wgmma_commit();
    }

    // Gives a chunk's place to the block that fills it next. If that is another, what it will send is expected from now
    // on: this chunk has come, so the barrier counts for the next, and nothing is sent before all have given the place.
    // `filler`: that block.
    __device__ __forceinline__ void release(int slot, int filler) const {
        if (CLUSTER > 1 && group == 0 && filler != block_rank()) barrier_expect(shared.full_input + slot, SENT_BYTES);
        if (CLUSTER > 1) barrier_arrive_in(shared.empty_input + slot, filler);
        else barrier_arrive(shared.empty_input + slot);
    }

    // The sums of `chunks` from a place on, of which `count` chunks of the share were before, and as many as `left`
    // are to come.
    __device__ __forceinline__ void multiply(Sums& sums, const Place& from, unsigned count, int left, int chunks) {
        Turn<IN_STAGES> input(count, 1);
        Turn<WEIGHT_STAGES> filter(count, OWN);
        int filler = (count + IN_STAGES) % CLUSTER;  // which block fills the chunk's place next
        Factors factors(shared.exponents + from.tile_chunk(g) * ALIKE + block_rank() * BF, group, thread());
        factors.fetch();
        const bool first = thread() == 0;
#pragma unroll
        for (int point = 0; point < OWN; ++point)
#pragma unroll
            for (int i = 0; i < WGMMA_SUMS; ++i) sums[point][i] = 0.0f;
#pragma unroll 1
        for (; chunks > 0; --chunks, --left) {
            barrier_wait(shared.full_input + input.slot, input.parity);
            // Before any thread can give the place back.
            const int of_input = load_int(input_stages + input.slot * STAGE_BYTES + EXPONENT_PLACE);
            const unsigned chunk = input_stages + group * OWN * POSITION_BYTES + input.slot * STAGE_BYTES;
#pragma unroll
            for (int point = 0; point < OWN; ++point) {
                barrier_wait(shared.full_weights[group] + filter.slot, filter.parity);
                Chain chain;
                start_products(chain, chunk + point * POSITION_BYTES,
                               weights.stages + filter.slot * WEIGHT_STAGE_BYTES);
                // While the products are under way; into the place of those before.
                const int ahead = point + WEIGHT_STAGES - 1;
                weights.fetch_next(ahead, filter.slot_before(), first && (ahead < OWN || left > ahead / OWN));
                __syncwarp();
                filter.advance();
                if (point == 0) {
                    factors.meet(of_input);
                    if (chunks > 1) factors.fetch();
                }
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                for (int i = 0; i < WGMMA_SUMS; ++i) asm volatile("" : "+f"(chain[i])::"memory");
                if (point == OWN - 1) {
                    if (first && (CLUSTER == 1 || left > IN_STAGES)) release(input.slot, filler);
                    input.advance();
                    filler = filler + 1 < CLUSTER ? filler + 1 : 0;
                }
                factors.add(sums[point], chain);
            }
        }
#pragma unroll
        for (int point = 0; point < OWN; ++point) factors.finish(sums[point]);
    }

    // Blocks take shares in an order in which each waits only for such as were started before it.
    __device__ __forceinline__ int place_of_block() const { return part_of_block() * CLUSTER + block_rank(); }

    // Where a block leaves this thread's sums.
    __device__ __forceinline__ float4* sums_of(int block) const {
        return shared.sums + (int64)block * (MAX_SUMS / 4) + group * (MAX_SUMS / 8) + thread();
    }

    // Leaves the sums to the block that began the tile.
    __device__ __forceinline__ void leave(const Sums& sums) const {
        float4* to = sums_of(place_of_block());
#pragma unroll
        for (int point = 0; point < OWN; ++point)
#pragma unroll
            for (int i = 0; i < WGMMA_SUMS; i += 4, to += GROUP)
                *to = make_float4(sums[point][i], sums[point][i + 1], sums[point][i + 2], sums[point][i + 3]);
        group_barrier(group);
        if (thread() == 0)  // releases what it knows of: through the barrier, all that its warpgroup wrote
            asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(shared.flags + place_of_block() * 2 + group)
                         : "memory");
    }

    // Adds what the blocks after this one leave, up to the tile's end.
    __device__ __forceinline__ void collect(Sums& sums, int unit, int tile_end) const {
        for (int part = part_of_block() + 1; unit < tile_end; ++part) {
            const int block = part * CLUSTER + block_rank();
            if (thread() == 0) {
                wait_for_flag(shared.flags + block * 2 + group);
            }
            group_barrier(group);
            const float4* from = sums_of(block);
#pragma unroll
            for (int point = 0; point < OWN; ++point)
#pragma unroll
                for (int i = 0; i < WGMMA_SUMS; i += 4, from += GROUP) {
                    const float4 part = __ldcg(from);
                    sums[point][i] += part.x, sums[point][i + 1] += part.y;
                    sums[point][i + 2] += part.z, sums[point][i + 3] += part.w;
                }
            unit = Part(g, part).end;
        }
    }

    __device__ __forceinline__ void run() {
        for (int i = 0; i < WEIGHT_STAGES - 1; ++i)
            weights.fetch_next(i, i, thread() == 0 && share.begin + i / OWN < share.end);
        __syncwarp();
        for (int unit = share.begin; unit < share.end;) {
            const Place from(unit, g);
            const int chunks = min(g.chunks - from.chunk, share.end - unit);
            Sums sums;
            multiply(sums, from, unit - share.begin, share.end - unit, chunks);
            unit += chunks;
            if (from.chunk > 0) {
                leave(sums);
            } else {
                if (chunks < g.chunks) collect(sums, unit, unit - chunks + g.chunks);
                const int slot = Turn<WEIGHT_STAGES>(unit - share.begin, OWN).slot_before();
                float* const staging = reinterpret_cast<float*>(all_weights + slot * WEIGHT_STAGE_BYTES);
                write(output, g, from.stretch * CELLS, from.filter_tile * ALIKE + block_rank() * BF, sums,
                      shared, staging, group);
            }
        }
    }
};
