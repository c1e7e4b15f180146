// One 3xTF32 convolution of CUTLASS behind a C interface: NHWC, forward, implicit GEMM with cp.async (Ampere's tensor
// cores, which Hopper runs too). harness/contenders/cutlass_library.py compiles it once for each tile and loads it.
//
// The kernel is cutlass::conv::kernel::DefaultConv2dFprop with cutlass::arch::OpMultiplyAddFastF32, as in CUTLASS's
// example 28_ampere_3xtf32_fast_accurate_tensorop_fprop.

#include <cutlass/conv/kernel/default_conv2d_fprop.h>
// CUTLASS's own files need this order.
#include <cutlass/conv/device/implicit_gemm_convolution.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>
#include <cutlass/layout/tensor.h>

// The sizes of a convolution as in cuconv.ConvProblem, and the number of split-K slices.
struct Sizes {
    int n, c, h, w, m, kh, kw, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, out_h, out_w, slices;
};

namespace {

using Layout = cutlass::layout::TensorNHWC;
using Tensor = cutlass::TensorRef<float, Layout>;

using Convolution = cutlass::conv::device::ImplicitGemmConvolution<typename cutlass::conv::kernel::DefaultConv2dFprop<
    float, Layout, float, Layout, float, Layout, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<TILE_M, TILE_N, TILE_K>,
    cutlass::gemm::GemmShape<TILE_M / WARPS_M, TILE_N / WARPS_N, TILE_K>,
    cutlass::gemm::GemmShape<16, 8, 8>,
    cutlass::epilogue::thread::LinearCombination<float, OUTPUT_ALIGNMENT, float, float>,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>,
    STAGES,
    cutlass::arch::OpMultiplyAddFastF32,
    cutlass::conv::IteratorAlgorithm::ITERATOR,
    cutlass::conv::StrideSupport::kStrided,
    INPUT_ALIGNMENT, INPUT_ALIGNMENT>::Kernel>;

Tensor packed(const float* data, int n, int h, int w, int c) {
    return {const_cast<float*>(data), Layout::packed({n, h, w, c})};
}

Convolution::Arguments arguments(const Sizes& s, const float* input, const float* weight, float* output) {
    const cutlass::conv::Conv2dProblemSize problem(
        {s.n, s.h, s.w, s.c}, {s.m, s.kh, s.kw, s.c}, {s.pad_h, s.pad_h, s.pad_w, s.pad_w},
        {s.stride_h, s.stride_w}, {s.dilation_h, s.dilation_w}, {s.n, s.out_h, s.out_w, s.m},
        cutlass::conv::Mode::kCrossCorrelation, s.slices);
    const Tensor result = packed(output, s.n, s.out_h, s.out_w, s.m);
    // alpha 1 and beta 0: the output is not read, except by the later slices of split-K.
    return {problem, packed(input, s.n, s.h, s.w, s.c), packed(weight, s.m, s.kh, s.kw, s.c), result, result,
            {1.0f, 0.0f}, cutlass::conv::SplitKMode::kSerial};
}

}  // namespace

extern "C" {

// The text of a status that create and run return; 0 is success.
const char* status_text(int status) { return cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(status)); }

// The bytes of device memory that create takes for the semaphores of split-K.
size_t workspace_bytes(const Sizes* sizes) {
    return Convolution::get_workspace_size(arguments(*sizes, nullptr, nullptr, nullptr));
}

// A convolution ready to run, in *made, which destroy frees. The workspace is cleared on the stream, once: the last
// slice of each tile leaves its semaphore at zero.
int create(const Sizes* sizes, const float* input, const float* weight, float* output, void* workspace,
           cudaStream_t stream, Convolution** made) {
    const Convolution::Arguments given = arguments(*sizes, input, weight, output);
    cutlass::Status status = Convolution::can_implement(given);
    if (status != cutlass::Status::kSuccess) return static_cast<int>(status);
    auto* convolution = new Convolution;
    status = convolution->initialize(given, workspace, stream);
    if (status == cutlass::Status::kSuccess) *made = convolution;
    else delete convolution;
    return static_cast<int>(status);
}

int run(Convolution* convolution, cudaStream_t stream) { return static_cast<int>(convolution->run(stream)); }

void destroy(Convolution* convolution) { delete convolution; }

}
