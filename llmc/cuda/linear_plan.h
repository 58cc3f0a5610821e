// linear_plan.h (CUDA, for linear*.cu only) - one matrix product of a linear layer as cuBLASLt runs it,
// looked up by shape. A lookup after the first is a hash of 20 bytes on the host, so a plan may be used
// while a graph is captured.
//
// The library counts columns first: a row-major (R,K) tensor is to it a column-major (K,R) matrix with
// leading dimension K. So each product is asked for transposed, D = op(A) B' with D (rows,columns):
//   FORWARD          out (N,OC) = inp w^T     D = out^T  (OC,N) = w    inp^T   A = w, transposed   B = inp
//   BACKWARD_INPUT   dinp (N,C) = dout w      D = dinp^T (C,N)  = w^T  dout^T  A = w               B = dout
//   BACKWARD_WEIGHT  dw (OC,C) = dout^T inp   D = dw^T   (C,OC) = inp^T dout   A = inp             B = dout, transposed
// A bias runs along the rows of D in FORWARD, a bias gradient (the sum of B over the inner dimension N)
// along the columns of D in BACKWARD_WEIGHT, a pre-activation has the shape of D.
#pragma once
#include <cublasLt.h>

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "../ops.h"
#include "lane.cuh"

namespace llmc {

enum class Product : uint32_t { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT };
enum class Epilogue : uint32_t { NONE, BIAS, GELU, GELU_BIAS, GELU_SLOPE };

// In the order of the table above; vector: bias or its gradient; matrix: the pre-activation.
struct Operands {
    const void *a = nullptr, *b = nullptr;
    void *d = nullptr;
    const void *vector = nullptr, *matrix = nullptr;
    const void *addend = nullptr;  // Into::ADD: what the product is added to; null: d itself
};

struct ProductShape {
    Product product;
    Epilogue epilogue;
    Into into;
    int N, C, OC;
};

// How a product with an epilogue runs: by the library, by the plain product and a kernel of its own for the rest,
// or by our own product (linear_wgmma.h), which has GELU's.
enum class Way { LIBRARY, APART, OWN };

struct ProductPlan {
    cublasLtMatmulDescOpaque_t matmul;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    std::array<uint32_t, 4> alignment;  // of a, b, d and the addend in bytes, 16 at most
    bool adds, has_vector, has_matrix;
    bool available = false;  // the library has an algorithm
    Way way = Way::LIBRARY;  // by tuning
};

// Name, shape and type for messages.
std::string describe(const ProductShape &shape, cudaDataType_t type);

class LinearState {
  public:
    explicit LinearState(int device);
    ~LinearState();
    LinearState(const LinearState &) = delete;

    // The plan for these operands, made on first use with the library's first proposal.
    ProductPlan &plan(const Lane &lane, const ProductShape &shape, const Operands &operands, cudaDataType_t type);
    // The library's proposals, best guess first. fp32 partial sums only.
    std::vector<cublasLtMatmulAlgo_t> candidates(const Lane &lane, ProductPlan &plan, int at_most);
    void run(Lane &lane, ProductPlan &plan, const Operands &operands);
    // Whether the library would run the plan by this algorithm, from wherever it comes.
    bool takes(const Lane &lane, ProductPlan &plan, const cublasLtMatmulAlgo_t &algo);

    std::string notes;
    std::vector<ProductPlan *> *asked = nullptr;  // tuning: every plan that is looked up is listed here

  private:
    using Key = std::array<uint32_t, 5>;  // sizes, kind, alignments
    struct Hash {
        size_t operator()(const Key &key) const;
    };
    cublasLtHandle_t handle_ = nullptr;
    std::unordered_map<Key, ProductPlan, Hash> plans_;
};

// The lane's state, made on first use.
LinearState &linear_state(Lane &lane);

template <class X> constexpr cudaDataType_t cuda_type();
template <> constexpr cudaDataType_t cuda_type<float>() { return CUDA_R_32F; }
template <> constexpr cudaDataType_t cuda_type<bf16>() { return CUDA_R_16BF; }

}  // namespace llmc
