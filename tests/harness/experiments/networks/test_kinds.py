"""The kind of a kernel by its name: those of torch, NVIDIA's libraries and cuConv."""

import pytest

from harness.experiments.networks.kinds import by_kind, kind_of


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar>(int)", "elementwise"),
        ("triton_poi_fused_convolution_relu_3", "elementwise"),
        ("triton_poi_fused_max_pool2d_with_indices_relu_1", "pooling"),
        ("triton_tem_fused_convolution_7", "convolution"),
        ("void at::native::max_pool_forward_nchw<float>(int)", "pooling"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>", "pooling"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw", "convolution"),
        ("sm80_xmma_dgrad_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc", "convolution"),  # a transposed convolution
        ("volta_scudnn_128x64_relu_interior_nn_v1", "convolution"),
        ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>", "elementwise"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float>", "convolution"),
        ("fp16x3_winograd", "convolution"),
        ("tf32x3_gemm", "convolution"),
        ("nhwc_split", "convolution"),
        ("pad_channels", "convolution"),
        ("group_norm", "other"),
        ("nhwc_group_norm", "other"),
        ("nhwc_squeeze_excite", "other"),
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "gemm"),
        ("gemv", "gemm"),
        ("finish_output", "elementwise"),
        ("max_pool", "pooling"),
        ("void gemv2T_kernel_val<int, float>", "gemm"),
        ("ampere_sgemm_64x32_sliced1x4_tn", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16>", "gemm"),
        ("Memcpy DtoD (Device -> Device)", "other"),
        ("void at::native::CatArrayBatchedCopy<float>", "other"),
    ],
)
def test_the_kind_of_a_kernel_is_in_its_name(kernel, kind):
    assert kind_of(kernel) == kind


def test_launches_by_kind():
    launches = [("fp16x3", 5.0), ("Memset (Device)", 1.0), ("fp16x3", 6.0), ("ampere_sgemm_32x32", 2.0)]
    assert by_kind(launches) == {"convolution": [5.0, 6.0], "gemm": [2.0], "other": [1.0]}
