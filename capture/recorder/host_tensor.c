/* Tensors as hosts hold them: plain allocations and DLPack. */
#include <lastbit/capture.h>

#include <string.h>

lb_host_tensor lb_host_tensor_of(const void *data, lb_dtype dtype, int ndim, const int64_t *shape)
{
    lb_host_tensor seen = {
        .storage = (int64_t)(intptr_t)data, .data = data, .layout = lb_layout_contiguous(ndim, shape), .dtype = dtype};
    int64_t n = lb_layout_numel(&seen.layout);
    seen.storage_bytes = n > 0 ? lb_dtype_bytes(dtype, (size_t)n) : 0;
    return seen;
}

/* The C layout of DLTensor, from DLPack's dlpack.h (Apache-2.0), unchanged since its first release. */
typedef struct dl_tensor {
    void *data;
    struct {
        int32_t device_type, device_id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

static lb_dtype dtype_of_dlpack(uint8_t code, uint8_t bits)
{
    static const struct {
        uint8_t code, bits;
        lb_dtype dtype;
    } table[] = {
        {0, 8, LB_I8},    {0, 16, LB_I16},    {0, 32, LB_I32},      {0, 64, LB_I64},  {1, 8, LB_U8},
        {1, 16, LB_U16},  {1, 32, LB_U32},    {1, 64, LB_U64},      {2, 16, LB_F16},  {2, 32, LB_F32},
        {2, 64, LB_F64},  {4, 16, LB_BF16},   {5, 32, LB_C32},      {5, 64, LB_C64},  {5, 128, LB_C128},
        {6, 8, LB_BOOL},  {10, 8, LB_E4M3FN}, {11, 8, LB_E4M3FNUZ}, {12, 8, LB_E5M2}, {13, 8, LB_E5M2FNUZ},
        {14, 8, LB_E8M0}, {17, 4, LB_E2M1},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].code == code && table[i].bits == bits) return table[i].dtype;
    return LB_NO_DTYPE;
}

lb_status lb_host_tensor_of_dlpack(const void *dl_tensor, lb_host_tensor *seen, lb_err *err)
{
    const struct dl_tensor *tensor = dl_tensor;
    memset(seen, 0, sizeof *seen);
    seen->dtype = dtype_of_dlpack(tensor->dtype.code, tensor->dtype.bits);
    if (seen->dtype == LB_NO_DTYPE || tensor->dtype.lanes != 1)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "DLPack type code %d, %d bits, %d lanes cannot be recorded",
                       tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
    if (tensor->ndim < 0 || tensor->ndim > LB_MAX_DIMS)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "a tensor of %d dimensions; %d can be recorded", tensor->ndim,
                       LB_MAX_DIMS);
    const int64_t width = (int64_t)lb_dtype_bits(seen->dtype) / 8;
    seen->layout = lb_layout_contiguous(tensor->ndim, tensor->shape);
    if (tensor->strides) memcpy(seen->layout.stride, tensor->strides, (size_t)tensor->ndim * sizeof tensor->strides[0]);
    seen->device = tensor->device.device_type == 1 || tensor->device.device_type == 3 ? 0
                   : tensor->device.device_type == 2                                  ? 1
                                                                                      : 2;
    seen->storage = (int64_t)(intptr_t)tensor->data;
    seen->data = (const char *)tensor->data + tensor->byte_offset;
    if (width > 0 && tensor->byte_offset % (uint64_t)width)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "byte offset %llu is not a multiple of the element size",
                       (unsigned long long)tensor->byte_offset);
    seen->layout.offset = width > 0 ? (int64_t)(tensor->byte_offset / (uint64_t)width) : 0;
    int64_t first, last;
    LB_TRY(lb_layout_dense_range(&seen->layout, &first, &last, err));
    seen->storage_bytes = lb_dtype_bytes(seen->dtype, (size_t)last);
    return LB_OK;
}
