// The epilogue of fp16x3_pointwise: a tile's sums go through shared memory, so that neighbouring threads write
// neighbouring pixels. It takes PASS_FILTERS filters at a time, through two buffers: one is filled while the other is
// read, with one barrier for each pass.
//
//   registers: bias, activation --> buffer 0 | buffer 1 --> output       consumers with pixels of their own
//   registers --> buffers of all consumers --> sum, bias, activation --> output       split-K across the warpgroups
//
// A residual is added on the way from the buffers to the output, and the activation then follows it.
//
// The writers are the consumers that share the tile's pixels: one, or all of them.
#pragma once

#include "common/activation.cuh"
#include "pointwise/tiles.cuh"

constexpr int PASS_FILTERS = EPILOGUE_FILTERS / 2, PASSES = (BF + PASS_FILTERS - 1) / PASS_FILTERS;
constexpr int SHARERS = WARPGROUP_SPLIT_K ? CONSUMERS : 1;  // consumers with the same pixels
constexpr int BUFFERS = EPILOGUE_FILTERS * PITCH;           // floats of a consumer's two buffers
constexpr int WRITERS = SHARERS * WARPGROUP;                // threads that write a tile's pixels
constexpr int WRITE_FLOATS = VECTOR ? 4 : 1;                // floats of a store, unless SHIFTED

// Neighbouring outputs that are read and written at once: one or four.
template <int FLOATS>
struct alignas(FLOATS * 4) Outputs {
    float values[FLOATS];

    // Four are a predicated store: the compiler would make a branch, or four stores, of `if (exists)`.
    __device__ __forceinline__ void store(float* to, bool exists) const {
        if (FLOATS == 4)
            asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
                         "f"(values[0]), "f"(values[FLOATS / 2 - FLOATS / 4]), "f"(values[FLOATS / 2]),
                         "f"(values[FLOATS - 1]), "r"((int)exists)
                         : "memory");
        else if (exists)
            *to = values[0];
    }
};

// A consumer thread. Sums that are not finite become NaNs on the way out. The writers agree whether there are any, and
// then replace each NaN in the output by a plain FP32 sum.
struct Epilogue {
    const Block& block;
    const float *weight, *bias;
    float* output;
    const Activation activation;
    float* const buffers;  // each consumer's, one after the other
    const int consumer;
    WITH_RESIDUAL(const float* const residual;)

    __device__ __forceinline__ void write(float (&sum)[SUMS], const Tile& tile) const {
        const int filter_0 = tile.filter_tile * BF;
        const unsigned pass = tile.count * PASSES;  // counted over all tiles: its parity chooses the buffer
        bool bad = !WARPGROUP_SPLIT_K && has_non_finite(sum);
        if (!WARPGROUP_SPLIT_K) finish(sum, filter_0, bad);
        bad = PLANE     ? write_image(sum, tile, pass, bad)
              : SHIFTED ? write_shifted(sum, tile, pass, bad)
                        : write_plain(sum, tile, pass, bad);
        // Also a barrier: after it the outputs are written. Where all writers know that none is bad, it is not needed.
        if (WARPGROUP_SPLIT_K || bad) bad = any_writer(bad);
        if (bad) replace_non_finite(tile);
    }

    // The three functions that follow return whether a sum is not finite. With split-K across the warpgroups sums are
    // known only here, and the answer is about the thread's own. Otherwise it is about all writers' sums, and the
    // argument `bad` about the thread's own.

    // A thread's outputs in the plain layout: one place in each AT_ONCE-th filter of a pass.
    struct Columns {
        static constexpr int LANES = WARPGROUP_PIXELS / WRITE_FLOATS, AT_ONCE = WRITERS / LANES;

        float* const to;
        const int filter, left;  // the first filter, and how many exist from it on
        const int first, place;  // its number in a pass, and its outputs' place in a buffer

        // Whether the thread's i-th filter is one of a pass of `filters` filters.
        __device__ __forceinline__ bool is_in_pass(int i, int filters) const {
            return (i + 1) * AT_ONCE <= filters || i * AT_ONCE + first < filters;
        }
    };

    __device__ __forceinline__ bool write_plain(const float (&sum)[SUMS], const Tile& tile, unsigned pass,
                                                bool bad) const {
        const int filter_0 = tile.filter_tile * BF;
        const int lane_pixel = writer() % Columns::LANES * WRITE_FLOATS, lane_filter = writer() / Columns::LANES;
        const int64 place = block.locate(tile, consumer, lane_pixel).offset(block.s, block.s.output_planes);
        const Columns columns = {output + place + (filter_0 + lane_filter) * (int64)block.s.out_pixels,
                                 filter_0 + lane_filter,
                                 place < 0 ? 0 : min(BF, block.s.filters - filter_0) - lane_filter,
                                 lane_filter,
                                 lane_filter * PITCH + lane_pixel};
        // There are enough single elements that it pays to skip the tests where all of a warp's exist.
        const bool all = WRITE_FLOATS == 1 && __all_sync(~0u, columns.left == BF - lane_filter);
        return all ? write_columns<true>(sum, columns, pass, bad) : write_columns<false>(sum, columns, pass, bad);
    }

    template <bool ALL>
    __device__ __forceinline__ bool write_columns(const float (&sum)[SUMS], const Columns& columns, unsigned pass,
                                                  bool bad) const {
        constexpr int AT_ONCE = Columns::AT_ONCE, MOST = (PASS_FILTERS + AT_ONCE - 1) / AT_ONCE;
        const Target target = target_of(0, 0);
#pragma unroll
        for (int filter = 0; filter < BF; filter += PASS_FILTERS, ++pass) {
            const int filters = min(PASS_FILTERS, BF - filter);
            const float* const from = fill(sum, filter, pass, target, bad) + columns.place;
            Outputs<WRITE_FLOATS> v[MOST] = {};  // all loads are issued before the first store
#pragma unroll
            for (int i = 0; i < MOST; ++i)
                if (columns.is_in_pass(i, filters)) v[i] = add_sharers<WRITE_FLOATS>(from + i * AT_ONCE * PITCH);
#if RESIDUAL
            Outputs<WRITE_FLOATS> more[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = filter + i * AT_ONCE;
                if (columns.is_in_pass(i, filters))
                    more[i] = residual_at<WRITE_FLOATS>(columns.to + at * (int64)block.s.out_pixels,
                                                        ALL || at < columns.left);
            }
#endif
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = filter + i * AT_ONCE;
                if (columns.is_in_pass(i, filters))
                    bad |= complete(v[i], WITH_RESIDUAL(more[i], ) columns.filter + at, true);
            }
            activate_completed(v);
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = filter + i * AT_ONCE;
                if (columns.is_in_pass(i, filters))
                    v[i].store(columns.to + at * (int64)block.s.out_pixels, ALL || at < columns.left);
            }
        }
        return bad;
    }

    // The outputs of one filter in a shifted warpgroup tile. In the buffer they are as far off 16 bytes as in the
    // output. A tile writes from one multiple of GRAIN in the output to another, except at the ends of a plane. So no
    // two tiles write to the same sector, or with the smaller grain to the same 16 bytes.
    struct Row {
        int offset;      // floats from a multiple of 16 bytes to the tile's first pixel
        int begin, end;  // what the tile writes, from the multiple of 16 bytes on

        __device__ __forceinline__ Row(const Epilogue& w, Block::Place place, int filter) {
            const Sizes& s = w.block.s;
            const unsigned plane = s.out_pixels;
            // Where the filter's plane begins, in floats from a multiple of 128 bytes.
            const unsigned start = misalignment(w.output) + (place.image * s.output_planes + filter) * plane;
            const bool first = place.pixel == 0, last = place.pixel + WARPGROUP_PIXELS == plane;
            const unsigned own = last ? (s.image_tiles - 1) * TILE_STEP : place.pixel;
            offset = (start + place.pixel) % 4;
            begin = offset + (first ? 0 : own - place.pixel + -(start + own) % GRAIN);
            end = offset + (last ? WARPGROUP_PIXELS : TILE_STEP + -(start + own + TILE_STEP) % GRAIN);
        }
        // The range that stores of 16 bytes write.
        __device__ __forceinline__ int vectors_begin() const { return (begin + 3) / 4 * 4; }
        __device__ __forceinline__ int vectors_end() const { return end / 4 * 4; }
    };

    __device__ __forceinline__ bool write_shifted(const float (&sum)[SUMS], const Tile& tile, unsigned pass,
                                                  bool bad) const {
        const Block::Place place = block.locate_shifted(tile, consumer);
        if (place.image >= block.s.images) return false;
        const int filter_0 = tile.filter_tile * BF;
        constexpr int AT_ONCE = WRITERS / 16, MOST = (PASS_FILTERS + AT_ONCE - 1) / AT_ONCE;  // filters; of a thread
        static_assert(AT_ONCE % 8 == 0, "the filters of a thread are equally far off 16 bytes");
        const int lane = writer() / 16;
        const Row row(*this, place, filter_0 + lane);
        const int mine = row.vectors_begin() + writer() % 16 * 4;
        const bool any_vector = mine < row.vectors_end();
        const int vector = any_vector ? mine : 0, left = any_vector ? block.s.filters - filter_0 - lane : 0;
        const Target target = target_of(Row(*this, place, filter_0).offset, block.s.out_pixels);
        const bool ends = place.pixel == 0 || place.pixel + WARPGROUP_PIXELS == block.s.out_pixels;
        float* const to = output + offset_of(place, filter_0 + lane) + (vector - row.offset);
#pragma unroll
        for (int filter = 0; filter < BF; filter += PASS_FILTERS, ++pass) {
            const int filters = min(PASS_FILTERS, BF - filter);
            const float* const buffer = fill(sum, filter, pass, target, bad);
            Outputs<4> v[MOST] = {};
#pragma unroll
            for (int i = 0; i < MOST; ++i)
                if (i * AT_ONCE + AT_ONCE <= filters || i * AT_ONCE + lane < filters)
                    v[i] = add_sharers<4>(buffer + (i * AT_ONCE + lane) * PITCH + vector);
#if RESIDUAL
            Outputs<4> more[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = filter + i * AT_ONCE;
                if (i * AT_ONCE + AT_ONCE <= filters || i * AT_ONCE + lane < filters)
                    more[i] = residual_at<4>(to + at * (int64)block.s.out_pixels, at < left);
            }
#endif
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = filter + i * AT_ONCE;
                if (i * AT_ONCE + AT_ONCE <= filters || i * AT_ONCE + lane < filters)
                    bad |= complete(v[i], WITH_RESIDUAL(more[i], ) filter_0 + at + lane, at < left);
            }
            activate_completed(v);
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = filter + i * AT_ONCE;
                if (i * AT_ONCE + AT_ONCE <= filters || i * AT_ONCE + lane < filters)
                    v[i].store(to + at * (int64)block.s.out_pixels, at < left);
            }
            if (ends)
                bad |= write_ends(buffer, place, filter_0 + filter, min(filters, block.s.filters - filter_0 - filter));
        }
        return bad;
    }

    // The elements at the ends of planes that are not part of 16 bytes of their own.
    __device__ __forceinline__ bool write_ends(const float* buffer, Block::Place place, int filter_0,
                                               int filters) const {
        asm volatile("" : "+r"(place.pixel));  // what follows from it is computed here, and takes no registers before
        bool bad = false;
#pragma unroll 1
        for (int at = writer() / 8; at < filters; at += WRITERS / 8) {
            const Row row(*this, place, filter_0 + at);
            const int end = writer() % 8, element = end < 4 ? row.begin + end : row.vectors_end() + end - 4;
            if (element >= (end < 4 ? row.vectors_begin() : row.end)) continue;
            float* const to = output + (offset_of(place, filter_0 + at) + element - row.offset);
            Outputs<1> v[] = {add_sharers<1>(buffer + at * PITCH + element)};
            bad |= complete(v[0], WITH_RESIDUAL(residual_at<1>(to, true), ) filter_0 + at, true);
            activate_completed(v);
            v[0].store(to, true);
        }
        return bad;
    }

    // A whole image: its planes follow each other in the buffer as in the output.
    __device__ __forceinline__ bool write_image(const float (&sum)[SUMS], const Tile& tile, unsigned pass,
                                                bool bad) const {
        const Block::Place place = block.locate(tile, consumer, writer() * WRITE_FLOATS);
        if (place.image >= block.s.images) return false;
        constexpr int MOST = (PASS_FILTERS * PITCH / WRITE_FLOATS + WRITERS - 1) / WRITERS;  // stores of a thread
        const int filter_0 = tile.filter_tile * BF, filters = min(BF, block.s.filters - filter_0);
        float* const to = output + (place.offset(block.s, block.s.output_planes) + filter_0 * (int64)PITCH);
        const Target target = target_of(0, 0);
        const int start = place.pixel;
#pragma unroll
        for (int filter = 0; filter < BF; filter += PASS_FILTERS, ++pass) {
            const int end = min(PASS_FILTERS, filters - filter) * PITCH;  // below 0 behind the last filter
            const float* const buffer = fill(sum, filter, pass, target, bad);
            Outputs<WRITE_FLOATS> v[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int element = i * WRITERS * WRITE_FLOATS + start;
                v[i] = add_sharers<WRITE_FLOATS>(buffer + (element < end ? element : 0));
            }
#if RESIDUAL
            Outputs<WRITE_FLOATS> more[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = i * WRITERS * WRITE_FLOATS;
                more[i] = residual_at<WRITE_FLOATS>(to + (filter * PITCH + at), at + start < end);
            }
#endif
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = i * WRITERS * WRITE_FLOATS, element = at + start;
                bad |= complete(v[i], WITH_RESIDUAL(more[i], ) filter_0 + filter, element < end, element);
            }
            activate_completed(v);
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = i * WRITERS * WRITE_FLOATS;
                v[i].store(to + (filter * PITCH + at), at + start < end);
            }
        }
        return bad;
    }

    // The offset in the output of a place in a filter's plane.
    __device__ __forceinline__ int64 offset_of(Block::Place place, int filter) const {
        return (place.image * (int64)block.s.output_planes + filter) * block.s.out_pixels + place.pixel;
    }

    // The thread's number among the writers.
    __device__ __forceinline__ int writer() const {
        return thread_index() % WARPGROUP + (WARPGROUP_SPLIT_K ? consumer * WARPGROUP : 0);
    }
    // Waits for all writers; returns whether the condition holds for any of them.
    __device__ __forceinline__ bool any_writer(bool condition) const {
        return named_barrier_count<WRITERS>(WARPGROUP_SPLIT_K ? CONSUMERS + 1 : 1 + consumer, condition);
    }

    __device__ static __forceinline__ bool has_non_finite(const float (&sum)[SUMS]) {
        float zeros[4] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i) zeros[i % 4] = fmaf(sum[i], 0.0f, zeros[i % 4]);
        return zeros[0] + zeros[1] + zeros[2] + zeros[3] != 0.0f;
    }
    __device__ __forceinline__ float bias_of(int filter) const {
        return filter < block.s.filters ? __ldg(bias + filter) : 0.0f;
    }
    // Bias and activation of the sums in registers. Where one is not finite (`bad`), those that are not become NaNs.
    __device__ __forceinline__ void finish(float (&sum)[SUMS], int filter_0, bool bad) const {
        if (bad)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = fmaf(sum[i], 0.0f, sum[i]);
        if (bias)
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (i % 4 < 2) {
                    const int filter = filter_0 + i / 4 * 8 + thread_index() % 4 * 2 + i % 2;
                    const float b = bias_of(filter);
                    sum[i] += b, sum[i + 2] += b;
                }
        if (!RESIDUAL) activate(sum, activation);
    }
    // The bias of outputs on the way out, with split-K across the warpgroups. Returns whether one is not finite.
    // place: floats from the filter's first output, in whole images, where the outputs may be of following filters.
    template <int FLOATS>
    __device__ __forceinline__ bool finish(Outputs<FLOATS>& v, int filter, int place = 0) const {
        float zeros = 0.0f;
#pragma unroll
        for (int i = 0; i < FLOATS; ++i) {
            v.values[i] = fmaf(v.values[i], 0.0f, v.values[i]);
            zeros = fmaf(v.values[i], 0.0f, zeros);
        }
        if (bias) {
            const float b = bias_of(filter);
#pragma unroll
            for (int i = 0; i < FLOATS; ++i) v.values[i] += PLANE ? bias_of(filter + (place + i) / PITCH) : b;
        }
        return zeros != 0.0f;
    }
#if RESIDUAL
    // The residual at a place of the output; zeros where that does not exist.
    template <int FLOATS>
    __device__ __forceinline__ Outputs<FLOATS> residual_at(const float* to, bool exists) const {
        Outputs<FLOATS> more = {};
        if (exists) more = *reinterpret_cast<const Outputs<FLOATS>*>(residual + (to - output));
        return more;
    }
#endif
    // Adds what the sums in registers have not had yet: the bias and the residual. Returns whether an output that
    // exists is not finite.
    template <int FLOATS>
    __device__ __forceinline__ bool complete(Outputs<FLOATS>& v, WITH_RESIDUAL(const Outputs<FLOATS>& more, )
                                             int filter, bool exists, int place = 0) const {
        const bool bad = WARPGROUP_SPLIT_K && finish(v, filter, place);
#if RESIDUAL
#pragma unroll
        for (int i = 0; i < FLOATS; ++i) v.values[i] += more.values[i];
#endif
        return bad && exists;
    }
    // The activation of a thread's outputs in a pass, where it has to follow the residual or the split-K.
    template <int FLOATS, int COUNT>
    __device__ __forceinline__ void activate_completed(Outputs<FLOATS> (&v)[COUNT]) const {
        if (RESIDUAL || WARPGROUP_SPLIT_K)
            activate(reinterpret_cast<float(&)[COUNT * FLOATS]>(v), activation);
    }

    // Where the thread's sums go in a buffer: of every eight filters it has two, in two pixels.
    struct Target {
        int places[2];  // the first pixel's, in each of the two filters
        bool second;    // whether the second pixel exists
    };
    // SHIFTED: offset of the first filter's outputs off 16 bytes, and `plane` floats to the next filter's; otherwise 0.
    __device__ __forceinline__ Target target_of(unsigned offset, unsigned plane) const {
        const unsigned thread = (unsigned)thread_index() % WARPGROUP, filter = thread % 4 * 2;
        const int pixel = first_pixel(thread), place = consumer * BUFFERS + filter * PITCH + pixel;
        return {{place + (int)((offset + filter * plane) % 4),
                 place + PITCH + (int)((offset + (filter + 1) * plane) % 4)},
                has_second(pixel)};
    }

    // Stores the sums of a pass into a buffer and returns it once it is full; the other buffer has been read then.
    // filter: the pass's first one. bad: after the last pass, whether it held for any writer; not with split-K.
    __device__ __forceinline__ const float* fill(const float (&sum)[SUMS], int filter, unsigned pass,
                                                 const Target& target, bool& bad) const {
        float* const buffer = buffers + pass % 2 * PASS_FILTERS * PITCH;
#pragma unroll
        for (int i = 0; i < PASS_FILTERS / 2 && filter / 2 + i < SUMS; ++i) {
            if (i % 4 >= 2) continue;
            float* const to = buffer + target.places[i % 2] + i / 4 * 8 * PITCH;
            const float x = sum[filter / 2 + i], y = sum[filter / 2 + i + 2];
            if (SHIFTED || PLANE) {
                to[0] = x;
                if (target.second) to[SECOND_PIXEL] = y;
            } else
                *reinterpret_cast<float2*>(to) = make_float2(x, y);
        }
        if (!WARPGROUP_SPLIT_K && filter + PASS_FILTERS >= BF) bad = any_writer(bad);
        else named_barrier<WRITERS>(WARPGROUP_SPLIT_K ? CONSUMERS + 1 : 1 + consumer);
        return WARPGROUP_SPLIT_K ? buffer : buffer + consumer * BUFFERS;
    }

    // The outputs of a place, added over the buffers of all consumers that share it, always in the same order.
    template <int FLOATS>
    __device__ static __forceinline__ Outputs<FLOATS> add_sharers(const float* from) {
        Outputs<FLOATS> v = *reinterpret_cast<const Outputs<FLOATS>*>(from);
#pragma unroll
        for (int sharer = 1; sharer < SHARERS; ++sharer) {
            const Outputs<FLOATS> more = *reinterpret_cast<const Outputs<FLOATS>*>(from + sharer * BUFFERS);
#pragma unroll
            for (int i = 0; i < FLOATS; ++i) v.values[i] += more.values[i];
        }
        return v;
    }

    // Replaces the tile's NaNs by plain FP32 sums. All writers have written.
    __device__ __forceinline__ void replace_non_finite(const Tile& tile) const {
        const Sizes& s = block.s;
        const int filter_0 = tile.filter_tile * BF, lane_pixel = writer() % WARPGROUP_PIXELS;
        Block::Place place =
            SHIFTED ? block.locate_shifted(tile, consumer) : block.locate(tile, consumer, lane_pixel);
        if (place.image >= s.images || PLANE && place.pixel >= PLANE) return;
#pragma unroll 1
        for (int filter = filter_0 + writer() / WARPGROUP_PIXELS; filter < min(filter_0 + BF, s.filters);
             filter += WRITERS / WARPGROUP_PIXELS) {
            unsigned pixel = place.pixel;
            if (SHIFTED) {
                const Row row(*this, place, filter);
                if (row.offset + lane_pixel < row.begin || row.offset + lane_pixel >= row.end) continue;
                pixel += lane_pixel;
            }
            float* const written = output + (place.image * (int64)s.output_planes + filter) * s.out_pixels + pixel;
            if (!isnan(*written)) continue;
            float value =
                plain_sum(block.input, weight, s, 1, 1, place.image, filter, pixel / s.width, pixel % s.width);
            if (bias) value += bias[filter];
            WITH_RESIDUAL(value += residual[written - output];)
            *written = activated(value, activation);
        }
    }
};
