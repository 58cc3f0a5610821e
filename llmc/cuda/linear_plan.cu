// linear_plan.cu - descriptors, heuristics and the call of cuBLASLt. See linear_plan.h for the mapping.
//
// Inner products are summed in fp32 (TF32 operands if the lane allows). Where the inner dimension is
// split over blocks, the parts meet in fp32 in the lane's workspace: the schemes that add parts in the
// output's type are masked out, since bf16 partial sums lose bits. All of this repeats bit for bit for
// one algorithm; the algorithm is the library's first proposal unless linear_tune has chosen.
#include "linear_plan.h"

#include <algorithm>

namespace llmc {
namespace {

void blas_check(cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const llmc_status ours = status == CUBLAS_STATUS_ALLOC_FAILED    ? LLMC_NO_MEMORY
                             : status == CUBLAS_STATUS_NOT_SUPPORTED ? LLMC_UNAVAILABLE
                                                                     : LLMC_DEVICE;
    fail(ours, "%s: cuBLASLt status %d (%s)", what, int(status), cublasLtGetStatusString(status));
}

template <class T>
void set(ProductPlan &plan, cublasLtMatmulDescAttributes_t attribute, const T &value) {
    blas_check(cublasLtMatmulDescSetAttribute(&plan.matmul, attribute, &value, sizeof value), "linear: matmul attribute");
}

class Preference {
  public:
    Preference() { blas_check(cublasLtMatmulPreferenceInit(&opaque_), "linear: preference"); }
    template <class T>
    void set(cublasLtMatmulPreferenceAttributes_t attribute, const T &value) {
        blas_check(cublasLtMatmulPreferenceSetAttribute(&opaque_, attribute, &value, sizeof value), "linear: preference attribute");
    }
    cublasLtMatmulPreferenceOpaque_t *get() { return &opaque_; }

  private:
    cublasLtMatmulPreferenceOpaque_t opaque_;
};

// log2 of the alignment in bytes, 4 at most: no access of the library is wider than 16 bytes, and plans
// should be shared by the layers, whose slices of a buffer are aligned differently beyond that.
uint32_t alignment_bits(const void *pointer) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer) | 16;
    uint32_t bits = 0;
    while (!(address >> bits & 1)) bits++;
    return bits;
}

cublasLtEpilogue_t library_epilogue(Epilogue epilogue) {
    switch (epilogue) {
    case Epilogue::BIAS: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::GELU: return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::GELU_BIAS: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::GELU_SLOPE: return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::NONE: break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

void set_pointers(ProductPlan &plan, const Operands &operands) {
    if (plan.has_vector) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.vector);
    if (plan.has_matrix) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.matrix);
}

void describe_product(ProductPlan &plan, const ProductShape &s, const Operands &operands, cudaDataType_t type, bool tf32) {
    const bool narrow = type != CUDA_R_32F;
    blas_check(cublasLtMatmulDescInit(&plan.matmul, !narrow && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F), "linear: matmul");
    const bool forward = s.product == Product::FORWARD, weight = s.product == Product::BACKWARD_WEIGHT;
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, forward ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan, CUBLASLT_MATMUL_DESC_TRANSB, weight ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, library_epilogue(s.epilogue));

    // Column-major extents of the stored tensors: inp (C,N), w (C,OC), dout and out (OC,N).
    struct Extent { int rows, columns; };
    const Extent inp{s.C, s.N}, w{s.C, s.OC}, out{s.OC, s.N};
    const auto lay = [&](cublasLtMatrixLayoutOpaque_t &layout, Extent e) {
        blas_check(cublasLtMatrixLayoutInit(&layout, type, e.rows, e.columns, e.rows), "linear: layout");
    };
    lay(plan.a, weight ? inp : w);
    lay(plan.b, forward ? inp : out);
    lay(plan.d, forward ? out : weight ? w : inp);

    plan.adds = s.into == Into::ADD;
    plan.has_vector = s.epilogue == Epilogue::BIAS || s.epilogue == Epilogue::GELU_BIAS;
    plan.has_matrix = s.epilogue == Epilogue::GELU || s.epilogue == Epilogue::GELU_BIAS || s.epilogue == Epilogue::GELU_SLOPE;
    if (plan.has_matrix) set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(forward ? s.OC : s.C));
    const void *const addend = operands.addend ? operands.addend : operands.d;
    plan.alignment = {1u << alignment_bits(operands.a), 1u << alignment_bits(operands.b), 1u << alignment_bits(operands.d), 1u << alignment_bits(addend)};
    set_pointers(plan, operands);
}

}  // namespace

std::string describe(const ProductShape &s, cudaDataType_t type) {
    static const char *const PRODUCTS[] = {"forward", "input gradient", "weight gradient"};
    return std::string(PRODUCTS[int(s.product)]) + " N=" + std::to_string(s.N) + " C=" + std::to_string(s.C) + " OC=" + std::to_string(s.OC) +
           (type == CUDA_R_32F ? " fp32" : " bf16");
}

LinearState::LinearState(int device) {
    int current = -1;
    cuda_check(cudaGetDevice(&current), "linear: current device");
    if (current != device) fail(LLMC_INTERNAL, "linear: the lane is on device %d, the current device is %d", device, current);
    blas_check(cublasLtCreate(&handle_), "linear: cublasLtCreate");
}

LinearState::~LinearState() { cublasLtDestroy(handle_); }

size_t LinearState::Hash::operator()(const Key &key) const {
    uint64_t h = 0;
    for (uint32_t part : key) h = (h ^ part) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    return h;
}

ProductPlan &LinearState::plan(const Lane &lane, const ProductShape &s, const Operands &operands, cudaDataType_t type) {
    const uint32_t kind = uint32_t(s.product) | uint32_t(s.epilogue) << 2 | uint32_t(s.into == Into::ADD) << 5 | uint32_t(type == CUDA_R_32F) << 6;
    uint32_t alignment = 0;
    for (const void *pointer : {operands.a, operands.b, static_cast<const void *>(operands.d), operands.vector, operands.matrix, operands.addend})
        alignment = alignment << 3 | alignment_bits(pointer);
    const auto [at, is_new] = plans_.try_emplace(Key{uint32_t(s.N), uint32_t(s.C), uint32_t(s.OC), kind, alignment});
    ProductPlan &plan = at->second;
    if (is_new) {
        describe_product(plan, s, operands, type, lane.tf32);
        const int aux_rows = s.product == Product::FORWARD ? s.OC : s.C;  // the library wants a multiple of 8
        const auto found = plan.has_matrix && aux_rows % 8 ? std::vector<cublasLtMatmulAlgo_t>() : candidates(lane, plan, 1);
        if ((plan.available = !found.empty())) plan.algo = found[0];
        else if (s.epilogue != Epilogue::NONE) notes += "linear: no fused epilogue for " + describe(s, type) + "; it runs as a kernel of its own\n";
    }
    if (asked) asked->push_back(&plan);
    return plan;
}

std::vector<cublasLtMatmulAlgo_t> LinearState::candidates(const Lane &lane, ProductPlan &plan, int at_most) {
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(lane.blas_workspace ? lane.blas_workspace_bytes : 0));
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, plan.alignment[0]);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, plan.alignment[1]);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, plan.alignment[3]);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, plan.alignment[2]);

    std::vector<cublasLtMatmulHeuristicResult_t> results(at_most);
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, &plan.matmul, &plan.a, &plan.b, &plan.d, &plan.d, preference.get(),
                                                                 at_most, results.data(), &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) blas_check(status, "linear: heuristics");
    std::vector<cublasLtMatmulAlgo_t> found;
    if (status == CUBLAS_STATUS_SUCCESS)
        for (int i = 0; i < count; i++)
            if (results[i].state == CUBLAS_STATUS_SUCCESS) found.push_back(results[i].algo);
    return found;
}

void LinearState::run(Lane &lane, ProductPlan &plan, const Operands &operands) {
    static constexpr float ONE = 1.0f, ZERO = 0.0f;
    set_pointers(plan, operands);
    const cublasStatus_t status =
        cublasLtMatmul(handle_, &plan.matmul, &ONE, operands.a, &plan.a, operands.b, &plan.b, plan.adds ? &ONE : &ZERO,
                       operands.addend ? operands.addend : operands.d, &plan.d,
                       operands.d, &plan.d, &plan.algo, lane.blas_workspace, lane.blas_workspace ? lane.blas_workspace_bytes : 0, lane.stream);
    blas_check(status, "linear: cublasLtMatmul");
}

bool LinearState::takes(const Lane &lane, ProductPlan &plan, const cublasLtMatmulAlgo_t &algo) {
    cublasLtMatmulHeuristicResult_t needs{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, &plan.matmul, &plan.a, &plan.b, &plan.d, &plan.d, &algo, &needs);
    return status == CUBLAS_STATUS_SUCCESS && needs.workspaceSize <= (lane.blas_workspace ? lane.blas_workspace_bytes : 0);
}

LinearState &linear_state(Lane &lane) {
    if (!lane.blas) lane.blas = std::make_shared<LinearState>(lane.device);
    return *static_cast<LinearState *>(lane.blas.get());
}

}  // namespace llmc
