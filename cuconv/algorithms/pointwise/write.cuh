// The part of fp16x3_pointwise that writes sums, through shared memory, so that pixels lie side by side.
//
// A few filters at a time, into one of two buffers while the other one is read. Those who share a tile's pixels, a
// team or all teams of a joint tile, read and write together; the sums of a joint tile's teams are added on the way.
#pragma once

#include "pointwise/tiles.cuh"

constexpr int PASS = STAGED / 2, PASSES = (BF + PASS - 1) / PASS;  // filters of a buffer
constexpr int SHARERS = JOINT ? TEAMS : 1;                          // teams of a tile's pixels
constexpr int STAGING = STAGED * PITCH;                             // floats of a team's buffers
constexpr int WRITERS = SHARERS * GROUP;                            // threads that write together
constexpr int WRITTEN = VECTOR ? 4 : 1;                             // floats at once, where rows are not shifted

// What is read and written at once: one or four.
template <int FLOATS>
struct alignas(FLOATS * 4) Pixels {
    float of[FLOATS];

    // As one instruction, which the compiler takes apart where it may, and without a branch.
    __device__ __forceinline__ void store(float* to, bool exists) const {
        if (FLOATS == 4)
            asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
                         "f"(of[0]), "f"(of[FLOATS / 2 - FLOATS / 4]), "f"(of[FLOATS / 2]), "f"(of[FLOATS - 1]),
                         "r"((int)exists)
                         : "memory");
        else if (exists)
            *to = of[0];
    }
};

struct Writer {
    // What a thread writes of a tile: a place in each AT_ONCE-th filter of a pass, from its first one on.
    struct Part {
        static constexpr int COLUMNS = TEAM_TILE / WRITTEN, AT_ONCE = WRITERS / COLUMNS;  // filters

        float* const to;
        const int filter, left;  // the first, and how many there are from it on
        const int first, place;  // in a pass, and where it is in a buffer

        // Whether its filter of turn i is one of a pass.
        __device__ __forceinline__ bool is_there(int i, int filters) const {
            return (i + 1) * AT_ONCE <= filters || i * AT_ONCE + first < filters;
        }
    };

    const Pointwise& of;
    const float *weight, *bias;
    float* output;
    const bool relu;
    float* const staging;  // of all teams
    const int team;

    __device__ __forceinline__ void write(float (&sum)[SUMS], const Tile& tile) const {
        const int filter_0 = tile.filter_tile * BF;
        const unsigned turn = tile.count * PASSES;
        bool bad = !JOINT && find_bad(sum);
        if (!JOINT) finish(sum, filter_0, bad);
        bad = PLANE     ? write_image(sum, tile, turn, bad)
              : SHIFTED ? write_shifted(sum, tile, turn, bad)
                        : write_rows(sum, tile, turn, bad);
        if (JOINT || bad) bad = any(bad);  // where all know it, this says that they have written
        if (bad) mend(tile);
    }

    // These return whether a sum is not finite: of a thread's where the tile is joint, since it is known only here,
    // else of all who write together, of which `bad` says it of a thread's.
    __device__ __forceinline__ bool write_rows(const float (&sum)[SUMS], const Tile& tile, unsigned turn,
                                               bool bad) const {
        const int filter_0 = tile.filter_tile * BF;
        const int lane_pixel = writer() % Part::COLUMNS * WRITTEN, lane_filter = writer() / Part::COLUMNS;
        const int64 place = of.locate(tile, team, lane_pixel).offset(of.s, of.s.filters);
        const Part part = {output + place + (filter_0 + lane_filter) * (int64)of.s.out_pixels,
                           filter_0 + lane_filter,
                           place < 0 ? 0 : min(BF, of.s.filters - filter_0) - lane_filter,
                           lane_filter,
                           lane_filter * PITCH + lane_pixel};
        // Of single elements there are so many that it pays to test for nothing where all of them exist.
        const bool all = WRITTEN == 1 && __all_sync(~0u, part.left == BF - lane_filter);
        return all ? write_passes<true>(sum, part, turn, bad) : write_passes<false>(sum, part, turn, bad);
    }

    template <bool ALL>
    __device__ __forceinline__ bool write_passes(const float (&sum)[SUMS], const Part& part, unsigned turn,
                                                 bool bad) const {
        constexpr int AT_ONCE = Part::AT_ONCE, MOST = (PASS + AT_ONCE - 1) / AT_ONCE;
        const Source source = source_of(0, 0);
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS, ++turn) {
            const int filters = min(PASS, BF - pass);
            const float* const from = stage(sum, pass, turn, source, bad) + part.place;
            Pixels<WRITTEN> v[MOST];  // all are asked for before the first is written
#pragma unroll
            for (int i = 0; i < MOST; ++i)
                if (part.is_there(i, filters)) v[i] = add_teams<WRITTEN>(from + i * AT_ONCE * PITCH);
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                if (!part.is_there(i, filters)) continue;
                const int at = pass + i * AT_ONCE;
                if (JOINT) bad |= finish(v[i], part.filter + at);
                v[i].store(part.to + at * (int64)of.s.out_pixels, ALL || at < part.left);
            }
        }
        return bad;
    }

    // A team's row of a filter where SHIFTED. In shared memory it lies as far off sixteen bytes as in the output, and
    // of its pixels the team writes those between multiples of GRAIN there, or that nobody else has: at the ends of an
    // image. So no two teams write to a sector, or to sixteen bytes of it, but there.
    struct Row {
        int offset;      // off sixteen bytes
        int begin, end;  // of what the team writes, from where sixteen bytes begin

        __device__ __forceinline__ Row(const Writer& w, Pointwise::Place place, int filter) {
            const Sizes& s = w.of.s;
            const unsigned plane = s.out_pixels;
            const unsigned start = offset_of(w.output) + (place.image * s.filters + filter) * plane;  // of the plane
            const bool first = place.pixel == 0, last = place.pixel + TEAM_TILE == plane;
            const unsigned own = last ? (s.rows - 1) * OWN_PIXELS : place.pixel;
            offset = (start + place.pixel) % 4;
            begin = offset + (first ? 0 : own - place.pixel + -(start + own) % GRAIN);
            end = offset + (last ? TEAM_TILE : OWN_PIXELS + -(start + own + OWN_PIXELS) % GRAIN);
        }
        // Of what is written sixteen bytes at a time.
        __device__ __forceinline__ int vectors_begin() const { return (begin + 3) / 4 * 4; }
        __device__ __forceinline__ int vectors_end() const { return end / 4 * 4; }
    };

    __device__ __forceinline__ bool write_shifted(const float (&sum)[SUMS], const Tile& tile, unsigned turn,
                                                  bool bad) const {
        const Pointwise::Place place = of.locate_row(tile, team);
        if (place.image >= of.s.images) return false;
        const int filter_0 = tile.filter_tile * BF;
        constexpr int AT_ONCE = WRITERS / 16, MOST = (PASS + AT_ONCE - 1) / AT_ONCE;  // rows, and turns of a pass
        static_assert(AT_ONCE % 8 == 0, "a thread's rows are equally far off what is written at once");
        const int lane = writer() / 16;
        const Row row(*this, place, filter_0 + lane);
        const int mine = row.vectors_begin() + writer() % 16 * 4;
        const bool any_vector = mine < row.vectors_end();
        const int vector = any_vector ? mine : 0, left = any_vector ? of.s.filters - filter_0 - lane : 0;
        const Source source = source_of(Row(*this, place, filter_0).offset, of.s.out_pixels);
        const bool ends = place.pixel == 0 || place.pixel + TEAM_TILE == of.s.out_pixels;
        float* const to = output + row_of(place, filter_0 + lane) + (vector - row.offset);
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS, ++turn) {
            const int filters = min(PASS, BF - pass);
            const float* const buffer = stage(sum, pass, turn, source, bad);
            Pixels<4> v[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i)
                if (i * AT_ONCE + AT_ONCE <= filters || i * AT_ONCE + lane < filters)
                    v[i] = add_teams<4>(buffer + (i * AT_ONCE + lane) * PITCH + vector);
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = pass + i * AT_ONCE;
                if (i * AT_ONCE + AT_ONCE <= filters || i * AT_ONCE + lane < filters)
                    bad |= pass_on(v[i], to + at * (int64)of.s.out_pixels, filter_0 + at + lane,
                                   at < left);
            }
            if (ends) bad |= write_ends(buffer, place, filter_0 + pass, min(filters, of.s.filters - filter_0 - pass));
        }
        return bad;
    }

    // The planes of a whole image, which follow each other in the buffer as in the output.
    __device__ __forceinline__ bool write_image(const float (&sum)[SUMS], const Tile& tile, unsigned turn,
                                                bool bad) const {
        const Pointwise::Place place = of.locate(tile, team, writer() * WRITTEN);
        if (place.image >= of.s.images) return false;
        constexpr int MOST = (PASS * PITCH / WRITTEN + WRITERS - 1) / WRITERS;  // turns of a pass
        const int filter_0 = tile.filter_tile * BF, filters = min(BF, of.s.filters - filter_0);
        float* const to = output + (place.offset(of.s, of.s.filters) + filter_0 * (int64)PITCH);
        const Source source = source_of(0, 0);
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS, ++turn) {
            const int end = min(PASS, filters - pass) * PITCH;
            const float* const buffer = stage(sum, pass, turn, source, bad);
            Pixels<WRITTEN> v[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int element = i * WRITERS * WRITTEN + place.pixel;
                v[i] = add_teams<WRITTEN>(buffer + (element < end ? element : 0));
            }
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = i * WRITERS * WRITTEN, element = at + place.pixel;
                bad |= pass_on(v[i], to + (pass * PITCH + at), filter_0 + pass, element < end, element);
            }
        }
        return bad;
    }

    // Where a filter's row begins in the output.
    __device__ __forceinline__ int64 row_of(Pointwise::Place place, int filter) const {
        return (place.image * (int64)of.s.filters + filter) * of.s.out_pixels + place.pixel;
    }

    // What the first or the last row of an image has beside sixteen bytes.
    __device__ __forceinline__ bool write_ends(const float* buffer, Pointwise::Place place, int filter_0,
                                               int filters) const {
        asm volatile("" : "+r"(place.pixel));  // nothing that follows from it takes a register in between
        bool bad = false;
#pragma unroll 1
        for (int at = writer() / 8; at < filters; at += WRITERS / 8) {
            const Row row(*this, place, filter_0 + at);
            const int end = writer() % 8, element = end < 4 ? row.begin + end : row.vectors_end() + end - 4;
            if (element < (end < 4 ? row.vectors_begin() : row.end))
                bad |= pass_on(add_teams<1>(buffer + at * PITCH + element),
                               output + (row_of(place, filter_0 + at) + element - row.offset), filter_0 + at, true);
        }
        return bad;
    }

    // `place`: from the filter's first pixel on, where PLANE.
    template <int FLOATS>
    __device__ __forceinline__ bool pass_on(Pixels<FLOATS> v, float* to, int filter, bool exists,
                                            int place = 0) const {
        const bool bad = JOINT && finish(v, filter, place);
        v.store(to, exists);
        return bad && exists;
    }

    // Of those who write together.
    __device__ __forceinline__ int writer() const { return own_thread() % GROUP + (JOINT ? team * GROUP : 0); }

    // Waits for those who write together; whether a condition holds for any of them.
    __device__ __forceinline__ bool any(bool condition) const {
        int any;
        asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, %2, %3, p;}"
                     : "=r"(any)
                     : "r"((int)condition), "r"(JOINT ? TEAMS + 1 : 1 + team), "n"(WRITERS)
                     : "memory");
        return any;
    }

    // Whether a sum is not finite.
    __device__ static __forceinline__ bool find_bad(const float (&sum)[SUMS]) {
        float zeros[4] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i) zeros[i % 4] = fmaf(sum[i], 0.0f, zeros[i % 4]);
        return zeros[0] + zeros[1] + zeros[2] + zeros[3] != 0.0f;
    }
    __device__ __forceinline__ float bias_of(int filter) const {
        return filter < of.s.filters ? __ldg(bias + filter) : 0.0f;
    }
    // Bias and ReLU. What is not finite becomes a NaN, which stays one: it is to be found in the output.
    __device__ __forceinline__ void finish(float (&sum)[SUMS], int filter_0, bool bad) const {
        if (bad)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = fmaf(sum[i], 0.0f, sum[i]);
        if (bias)
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (i % 4 < 2) {
                    const int filter = filter_0 + i / 4 * 8 + own_thread() % 4 * 2 + i % 2;
                    const float b = bias_of(filter);
                    sum[i] += b, sum[i + 2] += b;
                }
        if (relu)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = sum[i] < 0.0f ? 0.0f : sum[i];
    }
    // The same of a joint tile's sums, which are only there once they are added; returns whether one is not finite.
    // `place`: from the filter's first pixel on, where they may be of the filters that follow.
    template <int FLOATS>
    __device__ __forceinline__ bool finish(Pixels<FLOATS>& v, int filter, int place = 0) const {
        float zeros = 0.0f;
#pragma unroll
        for (int i = 0; i < FLOATS; ++i) {
            v.of[i] = fmaf(v.of[i], 0.0f, v.of[i]);
            zeros = fmaf(v.of[i], 0.0f, zeros);
        }
        if (bias) {
            const float b = bias_of(filter);
#pragma unroll
            for (int i = 0; i < FLOATS; ++i) v.of[i] += PLANE ? bias_of(filter + (place + i) / PITCH) : b;
        }
        if (relu)
#pragma unroll
            for (int i = 0; i < FLOATS; ++i) v.of[i] = v.of[i] < 0.0f ? 0.0f : v.of[i];
        return zeros != 0.0f;
    }

    // Where a thread's sums go in a buffer: of two filters of every eight, of two pixels.
    struct Source {
        int places[2];  // of the filters' first pixel
        bool other;     // whether there is the other pixel
    };
    // `offset`: of the first filter's row off a sector, `plane`: from there to the next filter's; 0 where not SHIFTED.
    __device__ __forceinline__ Source source_of(unsigned offset, unsigned plane) const {
        const unsigned thread = (unsigned)own_thread() % GROUP, filter = thread % 4 * 2;
        const int pixel = first_pixel_of(thread), place = team * STAGING + filter * PITCH + pixel;
        return {{place + (int)((offset + filter * plane) % 4),
                 place + PITCH + (int)((offset + (filter + 1) * plane) % 4)},
                has_other(pixel)};
    }

    // A team's sums of some filters, into a buffer. Returns it when all is there; the other one has been read then.
    // `bad`: where the tile is not joint, after the last pass, whether it was of any who write together.
    __device__ __forceinline__ const float* stage(const float (&sum)[SUMS], int pass, unsigned turn,
                                                  const Source& source, bool& bad) const {
        float* const buffer = staging + turn % 2 * PASS * PITCH;
#pragma unroll
        for (int i = 0; i < PASS / 2 && pass / 2 + i < SUMS; ++i) {
            if (i % 4 >= 2) continue;
            float* const row = buffer + source.places[i % 2] + i / 4 * 8 * PITCH;
            const float x = sum[pass / 2 + i], y = sum[pass / 2 + i + 2];
            if (SHIFTED || PLANE) {
                row[0] = x;
                if (source.other) row[OTHER_PIXEL] = y;
            } else
                *reinterpret_cast<float2*>(row) = make_float2(x, y);
        }
        if (!JOINT && pass + PASS >= BF) bad = any(bad);
        else named_barrier<WRITERS>(JOINT ? TEAMS + 1 : 1 + team);
        return JOINT ? buffer : buffer + team * STAGING;
    }

    // The sums of a place in all sharers' buffers, in order.
    template <int FLOATS>
    __device__ static __forceinline__ Pixels<FLOATS> add_teams(const float* from) {
        Pixels<FLOATS> v = *reinterpret_cast<const Pixels<FLOATS>*>(from);
#pragma unroll
        for (int team = 1; team < SHARERS; ++team) {
            const Pixels<FLOATS> more = *reinterpret_cast<const Pixels<FLOATS>*>(from + team * STAGING);
#pragma unroll
            for (int i = 0; i < FLOATS; ++i) v.of[i] += more.of[i];
        }
        return v;
    }

    // The plain sums instead of NaNs, when all who write together have written.
    __device__ __forceinline__ void mend(const Tile& tile) const {
        const Sizes& s = of.s;
        const int filter_0 = tile.filter_tile * BF, lane_pixel = writer() % TEAM_TILE;
        Pointwise::Place place = SHIFTED ? of.locate_row(tile, team) : of.locate(tile, team, lane_pixel);
        if (place.image >= s.images || PLANE && place.pixel >= PLANE) return;
#pragma unroll 1
        for (int filter = filter_0 + writer() / TEAM_TILE; filter < min(filter_0 + BF, s.filters);
             filter += WRITERS / TEAM_TILE) {
            unsigned pixel = place.pixel;
            if (SHIFTED) {
                const Row row(*this, place, filter);
                if (row.offset + lane_pixel < row.begin || row.offset + lane_pixel >= row.end) continue;
                pixel += lane_pixel;
            }
            float* const written = output + (place.image * (int64)s.filters + filter) * s.out_pixels + pixel;
            if (!isnan(*written)) continue;
            float value = plain_sum(of.input, weight, s, 1, 1, place.image, filter, pixel / s.width, pixel % s.width);
            if (bias) value += bias[filter];
            *written = relu && value < 0.0f ? 0.0f : value;
        }
    }
};
