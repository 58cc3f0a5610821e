// harness.cu - every op of ops.h as a C function on host buffers, so that Python can test ops one by one.
//
// One source for both backends: nvcc with -DLLMC_CUDA, or the C++ compiler (-x c++) for the CPU. A function
// uploads its buffers as they are (outputs too: the caller fills them with NaN where the op must assign, or
// with what it must add to), runs the op on the compute lane, copies back, and returns nullptr or what was
// thrown. Buffers are floats; the _bf16 functions narrow on the way in and widen on the way out.
// Behind every buffer lies a pattern that must survive: writes past the end are reported.
// tests/ops/ops.py reads the declarations from the EXPORT lines below.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../../llmc/device.h"
#include "../../llmc/error.h"
#include "../../llmc/ops.h"
#ifdef LLMC_CUDA
#include "../../llmc/cuda/column_sum.h"
#include "../../llmc/cuda/graph_memsets.h"
#include "../../llmc/cuda/lane.cuh"
#include "../../llmc/cuda/linear_wgmma.h"
#endif

using namespace llmc;

namespace {

std::unique_ptr<Lanes> lanes;
size_t shift = 0;  // elements by which buffers miss their alignment

// Structs keep their alignment: no shift while one of these lives.
struct Aligned {
    size_t saved = shift;
    Aligned() { shift = 0; }
    ~Aligned() { shift = saved; }
};

Lane &lane() { return (*lanes)[COMPUTE]; }

template <class F>
const char *guarded(const F &body) {
    static thread_local std::string message;
    try {
        DeviceScope scope(0);
        body();
        if (lanes) lanes->synchronize();
        return nullptr;
    } catch (const std::exception &error) {
        message = error.what();
        return message.c_str();
    }
}

constexpr size_t TAIL = 256;
constexpr unsigned char PATTERN = 0x5a;

// Device memory with a pattern behind it.
struct Block {
    char *memory;
    size_t bytes;
    explicit Block(size_t n) : memory(static_cast<char *>(device_alloc(n + TAIL))), bytes(n) {
        const std::vector<char> tail(TAIL, char(PATTERN));
        copy_to_device_now(lane(), memory + bytes, tail.data(), TAIL);
    }
    ~Block() { device_free(memory); }
    Block(const Block &) = delete;
    void check(const char *what) const {
        unsigned char tail[TAIL];
        copy_to_host_now(lane(), tail, memory + bytes, TAIL);
        for (size_t i = 0; i < TAIL; i++) {
            if (tail[i] != PATTERN) fail(LLMC_INTERNAL, "%s: a write %zu bytes past its end", what, i);
        }
    }
};

// A host buffer's image on the device. `get` for the op; `back` copies to the host again.
template <class T>
struct Image {
    std::unique_ptr<Block> block;
    size_t count;
    Image(const T *host, int64_t n) : count(size_t(n)) {
        if (!host) return;
        block.reset(new Block((count + shift) * sizeof(T)));
        copy_to_device_now(lane(), get(), host, count * sizeof(T));
    }
    T *get() { return block ? reinterpret_cast<T *>(block->memory) + shift : nullptr; }
    void back(T *host) {
        if (!block) return;
        lanes->synchronize();
        block->check("output");
        copy_to_host_now(lane(), host, get(), count * sizeof(T));
    }
};

// The same for floats that the device holds as X.
template <class X>
struct Stored {
    std::unique_ptr<Block> block;
    size_t count;
    Stored(const float *host, int64_t n) : count(size_t(n)) {
        if (!host) return;
        block.reset(new Block((count + shift) * sizeof(X)));
        Image<float> wide(host, n);
        narrow<X>(lane(), get(), wide.get(), n);
        lanes->synchronize();
    }
    X *get() { return block ? reinterpret_cast<X *>(block->memory) + shift : nullptr; }
    void back(float *host) {
        if (!block) return;
        lanes->synchronize();
        block->check("output");
        Block wide(count * sizeof(float));
        widen<X>(lane(), reinterpret_cast<float *>(wide.memory), get(), int64_t(count));
        lanes->synchronize();
        copy_to_host_now(lane(), host, wide.memory, count * sizeof(float));
    }
};

// Scratch starts as NaNs: an op that reads before it writes is seen. At least one byte, never null.
struct Scratch : Block {
    explicit Scratch(size_t n) : Block(n) {
        const std::vector<char> ones(n, char(0xff));
        copy_to_device_now(lane(), memory, ones.data(), n);
    }
};

Into into(int add) { return add ? Into::ADD : Into::ASSIGN; }

StepParams step_params(const llmc_hyper *hyper, uint64_t rounding, int64_t ticket) {
    StepParams p{};
    p.hyper = *hyper;
    p.bias1 = float(1.0 - std::pow(double(hyper->beta1), double(hyper->step)));
    p.bias2 = float(1.0 - std::pow(double(hyper->beta2), double(hyper->step)));
    p.rounding = rounding;
    p.ticket = ticket;
    return p;
}

// -- one body per op ---------------------------------------------------------------------------------

template <class X>
void do_embedding_forward(float *out, const int *tokens, const float *wte, const float *wpe, int B, int T, int C, int first, int Vp, int maxT) {
    Stored<X> o(out, int64_t(B) * T * C), e(wte, int64_t(Vp) * C), p(wpe, int64_t(maxT) * C);
    Image<int> t(tokens, int64_t(B) * T), start(first ? &first : nullptr, 1);
    embedding_forward<X>(lane(), o.get(), t.get(), e.get(), p.get(), B, T, C, start.get());
    o.back(out);
}

template <class X>
void do_embedding_backward(float *dwte, float *dwpe, const float *dout, const int *tokens, int B, int T, int C, int V, int maxT, int add) {
    Stored<X> de(dwte, padded_vocab(V) * C), dp(dwpe, int64_t(maxT) * C), d(dout, int64_t(B) * T * C);
    Image<int> t(tokens, int64_t(B) * T);
    Scratch index(embedding_index_bytes(B * T, V));
    embedding_index(lane(), index.memory, t.get(), B * T, V);
    embedding_backward<X>(lane(), de.get(), dp.get(), d.get(), t.get(), index.memory, B, T, C, V, maxT, into(add));
    de.back(dwte), dp.back(dwpe);
    index.check("token index");
}

template <class X>
void do_layernorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *w, const float *b, int N, int C) {
    Stored<X> o(out, int64_t(N) * C), i(inp, int64_t(N) * C), sw(w, C), sb(b, C);
    Image<float> m(mean, N), r(rstd, N);
    layernorm_forward<X>(lane(), o.get(), m.get(), r.get(), i.get(), sw.get(), sb.get(), N, C);
    o.back(out), m.back(mean), r.back(rstd);
}

template <class X>
void do_layernorm_backward(float *dinp, float *dw, float *db, float *dsum, const float *dout, const float *inp, const float *w, const float *mean,
                           const float *rstd, int N, int C, int add_inp, int add_param) {
    Stored<X> di(dinp, int64_t(N) * C), sdw(dw, C), sdb(db, C), sds(dsum, C), d(dout, int64_t(N) * C), i(inp, int64_t(N) * C), sw(w, C);
    Image<float> m(mean, N), r(rstd, N);
    Scratch scratch(layernorm_scratch_bytes(N, C));
    layernorm_backward<X>(lane(), di.get(), sdw.get(), sdb.get(), sds.get(), scratch.memory, d.get(), i.get(), sw.get(), m.get(), r.get(), N, C, into(add_inp),
                          into(add_param));
    di.back(dinp), sdw.back(dw), sdb.back(db), sds.back(dsum);
    scratch.check("layernorm scratch");
}

template <class X>
void do_linear_forward(float *out, const float *inp, const float *w, const float *b, int N, int C, int OC) {
    Stored<X> o(out, int64_t(N) * OC), i(inp, int64_t(N) * C), sw(w, int64_t(OC) * C), sb(b, OC);
    linear_forward<X>(lane(), o.get(), i.get(), sw.get(), sb.get(), N, C, OC);
    o.back(out);
}

template <class X>
void do_linear_residual_forward(float *out, const float *residual, const float *inp, const float *w, const float *b, int N, int C, int OC, int in_place) {
    Stored<X> o(in_place ? residual : out, int64_t(N) * OC), r(residual, int64_t(N) * OC), i(inp, int64_t(N) * C), sw(w, int64_t(OC) * C), sb(b, OC);
    linear_residual_forward<X>(lane(), o.get(), in_place ? o.get() : r.get(), i.get(), sw.get(), sb.get(), N, C, OC);
    o.back(out);
}

template <class X>
void do_linear_gelu_forward(float *out, float *pre, const float *inp, const float *w, const float *b, int N, int C, int OC) {
    Stored<X> o(out, int64_t(N) * OC), p(pre, int64_t(N) * OC), i(inp, int64_t(N) * C), sw(w, int64_t(OC) * C), sb(b, OC);
    linear_gelu_forward<X>(lane(), o.get(), p.get(), i.get(), sw.get(), sb.get(), N, C, OC);
    o.back(out), p.back(pre);
}

template <class X>
void do_linear_backward_input(float *dinp, const float *dout, const float *w, int N, int C, int OC) {
    Stored<X> di(dinp, int64_t(N) * C), d(dout, int64_t(N) * OC), sw(w, int64_t(OC) * C);
    linear_backward_input<X>(lane(), di.get(), d.get(), sw.get(), N, C, OC);
    di.back(dinp);
}

template <class X>
void do_linear_gelu_backward_input(float *dpre, float *dsum, const float *dout, const float *w, const float *pre, int N, int C, int OC, int add) {
    Stored<X> dp(dpre, int64_t(N) * C), ds(dsum, C), d(dout, int64_t(N) * OC), sw(w, int64_t(OC) * C), p(pre, int64_t(N) * C);
    Scratch scratch(linear_scratch_bytes(N, C));
    linear_gelu_backward_input<X>(lane(), dp.get(), ds.get(), scratch.memory, d.get(), sw.get(), p.get(), N, C, OC, into(add));
    dp.back(dpre), ds.back(dsum);
    scratch.check("linear scratch");
}

template <class X>
void do_linear_backward_weight(float *dw, const float *dout, const float *inp, int N, int C, int OC, int add) {
    Stored<X> sdw(dw, int64_t(OC) * C), d(dout, int64_t(N) * OC), i(inp, int64_t(N) * C);
    linear_backward_weight<X>(lane(), sdw.get(), d.get(), i.get(), N, C, OC, into(add));
    sdw.back(dw);
}

template <class X>
void do_gelu_forward(float *out, const float *inp, int64_t n) {
    Stored<X> o(out, n), i(inp, n);
    gelu_forward<X>(lane(), o.get(), i.get(), n);
    o.back(out);
}

template <class X>
void do_gelu_backward(float *dinp, float *dsum, const float *dout, const float *inp, int N, int C, int in_place, int add) {
    const int64_t n = int64_t(N) * C;
    Stored<X> di(in_place ? dout : dinp, n), ds(dsum, C), d(dout, n), i(inp, n);
    Scratch scratch(linear_scratch_bytes(N, C));
    gelu_backward<X>(lane(), di.get(), ds.get(), scratch.memory, in_place ? di.get() : d.get(), i.get(), N, C, into(add));
    di.back(dinp), ds.back(dsum);
    scratch.check("gelu scratch");
}

template <class X>
void do_attention_prepare(char *note, int note_bytes, int choice, int deterministic, int B, int T, int C, int NH) {
    const std::string text = attention_prepare<X>(lane(), AttentionPlan{bool(deterministic), choice}, B, T, C, NH);
    std::strncpy(note, text.c_str(), size_t(note_bytes) - 1);
}

template <class X>
void do_attention_forward(float *out, float *lse, const float *qkv, int choice, int deterministic, int B, int T, int C, int NH) {
    const AttentionPlan plan{bool(deterministic), choice};
    attention_prepare<X>(lane(), plan, B, T, C, NH);
    Stored<X> o(out, int64_t(B) * T * C), q(qkv, int64_t(B) * T * 3 * C);
    Image<float> l(lse, int64_t(B) * NH * T);
    Scratch scratch(attention_scratch_bytes<X>(lane(), plan, B, T, C, NH));
    attention_forward<X>(lane(), plan, o.get(), l.get(), q.get(), scratch.memory, B, T, C, NH);
    o.back(out), l.back(lse);
    scratch.check("attention scratch");
}

template <class X>
void do_attention_backward(float *dqkv, float *dsum, const float *dout, const float *qkv, const float *out, const float *lse, int choice,
                           int deterministic, int B, int T, int C, int NH, int add) {
    const AttentionPlan plan{bool(deterministic), choice};
    attention_prepare<X>(lane(), plan, B, T, C, NH);
    Stored<X> dq(dqkv, int64_t(B) * T * 3 * C), ds(dsum, 3 * C), d(dout, int64_t(B) * T * C), q(qkv, int64_t(B) * T * 3 * C), o(out, int64_t(B) * T * C);
    Image<float> l(lse, int64_t(B) * NH * T);
    Scratch scratch(attention_scratch_bytes<X>(lane(), plan, B, T, C, NH));
    attention_backward<X>(lane(), plan, dq.get(), ds.get(), scratch.memory, d.get(), q.get(), o.get(), l.get(), B, T, C, NH, into(add));
    dq.back(dqkv), ds.back(dsum);
    scratch.check("attention scratch");
}

template <class X>
void do_attention_decode(float *out, float *cache, const float *qkv, int rows, int T, int position, int C, int NH) {
    Stored<X> o(out, int64_t(rows) * C), c(cache, int64_t(rows) * T * 3 * C), q(qkv, int64_t(rows) * 3 * C);
    Image<int> place(&position, 1);
    attention_decode<X>(lane(), o.get(), c.get(), q.get(), rows, T, place.get(), C, NH);
    o.back(out), c.back(cache);
}

template <class X>
void do_classifier(float *losses, float *logits, const int *targets, float dloss, int rows, int V, int Vp, int write_dlogits) {
    Stored<X> l(logits, int64_t(rows) * Vp);
    Image<float> s(losses, rows);
    Image<int> t(targets, rows);
    classifier<X>(lane(), s.get(), l.get(), t.get(), dloss, rows, V, Vp, write_dlogits != 0);
    s.back(losses), l.back(logits);
}

template <class X>
void do_global_norm_squared(float *norm_squared, const float *grads, int64_t n) {
    Stored<X> g(grads, n);
    Image<float> s(norm_squared, 1);
    Scratch scratch(global_norm_scratch_bytes());
    global_norm_squared<X>(lane(), s.get(), scratch.memory, g.get(), n);
    s.back(norm_squared);
    scratch.check("norm scratch");
}

// Buffers hold layout.total elements; the record supplies clip_scale and skipped.
template <class X>
void do_adamw(float *params, float *master, float *m, float *v, const float *grads, const llmc_config *config, const llmc_hyper *hyper,
              const llmc_step_result *record, uint64_t rounding) {
    const ParamTable table = param_table(*config);
    const ParamLayout layout = param_layout(table, config->layers);
    Stored<X> p(params, layout.total), g(grads, layout.total);
    Image<float> w(master, layout.total), sm(m, layout.total), sv(v, layout.total);
    const Aligned aligned;
    Image<llmc_step_result> r(record, 1);
    Scratch s(sizeof(StepParams));
    StepParams *step = reinterpret_cast<StepParams *>(s.memory);
    store_step_params(lane(), step, step_params(hyper, rounding, 0));
    adamw<X>(lane(), p.get(), w.get(), sm.get(), sv.get(), g.get(), table, layout, step, r.get());
    p.back(params), w.back(master), sm.back(m), sv.back(v);
}

template <class X>
void do_round_trip(float *out, const float *inp, int64_t n) {
    Stored<X> s(inp, n);
    prefetch_l2(lane(), s.get(), size_t(n) * sizeof(X));
    spin(lane(), 10);
    s.back(out);
}

void do_mean_loss(float *mean, const float *losses, float scale, int N, int add) {
    Image<float> m(mean, 1), l(losses, N);
    mean_loss(lane(), m.get(), l.get(), scale, N, into(add));
    m.back(mean);
}

void do_gate(llmc_step_result *record, llmc_guard *guard, const llmc_hyper *hyper, int64_t ticket, float loss, float norm_squared) {
    const Aligned aligned;
    Image<llmc_step_result> r(record, 1);
    Image<llmc_guard> g(guard, 1);
    Image<float> l(&loss, 1), n(&norm_squared, 1);
    Scratch s(sizeof(StepParams));
    StepParams *step = reinterpret_cast<StepParams *>(s.memory);
    store_step_params(lane(), step, step_params(hyper, 0, ticket));
    gate(lane(), r.get(), g.get(), step, l.get(), n.get());
    r.back(record), g.back(guard);
}

void do_configure(int threads, int tf32, int deterministic, int misaligned) {
    llmc_options options{};
    options.batch = options.seq_len = 1;
    options.slots = options.results = 2;
    options.streams = 4;
    options.drop_edge = -1;
    options.threads = threads;
    options.tf32 = tf32;
    options.deterministic = deterministic;
    shift = size_t(misaligned);
    lanes.reset();
    lanes.reset(new Lanes(options));
}

void do_layout(const llmc_config *config, int64_t *offset, int64_t *count, int64_t *total) {
    const ParamLayout layout = param_layout(param_table(*config), config->layers);
    for (int i = 0; i < LLMC_NUM_PARAMS; i++) offset[i] = layout.offset[i], count[i] = layout.count[i];
    *total = layout.total;
}

// The CUDA backend's own products with GELU, which linear_* take only where timing says so. *ran: whether this
// device and these sizes have them.
#ifdef LLMC_CUDA
void do_own_gelu_forward(float *out, float *pre, const float *inp, const float *w, const float *b, int N, int C, int OC, int *ran) {
    if (!(*ran = wgmma_gelu_available(lane(), N, C, OC))) return;
    Stored<bf16> o(out, int64_t(N) * OC), p(pre, int64_t(N) * OC), i(inp, int64_t(N) * C), sw(w, int64_t(OC) * C), sb(b, OC);
    wgmma_gelu_forward(lane(), o.get(), p.get(), i.get(), sw.get(), sb.get(), N, C, OC);
    o.back(out), p.back(pre);
}
void do_own_gelu_backward(float *dpre, float *dsum, const float *dout, const float *w, const float *pre, int N, int C, int OC, int *ran) {
    if (!(*ran = wgmma_gelu_available(lane(), N, C, OC))) return;
    Stored<bf16> dp(dpre, int64_t(N) * C), ds(dsum, C), d(dout, int64_t(N) * OC), sw(w, int64_t(OC) * C), p(pre, int64_t(N) * C);
    Scratch scratch(linear_scratch_bytes(N, C));
    float *const partials = dsum ? reinterpret_cast<float *>(scratch.memory) : nullptr;
    wgmma_gelu_backward(lane(), dp.get(), partials, d.get(), sw.get(), p.get(), N, C, OC);
    if (dsum) add_partials(lane(), ds.get(), partials, wgmma_slices(N), C, Into::ASSIGN);
    dp.back(dpre), ds.back(dsum);
    scratch.check("linear scratch");
}

// A graph of memsets, one of them big, each after the one before it, and a copy between them that must see the first alone.
void do_graph_memsets(int *out, int n, int replace, int *memsets_left) {
    Image<int> image(out, n);
    char *const to = reinterpret_cast<char *>(image.get());
    const cudaStream_t stream = lane().stream;
    lanes->synchronize();
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting a capture");
    cudaMemsetAsync(to, 1, 4, stream);
    cudaMemcpyAsync(to + 3000, to, 4, cudaMemcpyDeviceToDevice, stream);
    cudaMemsetAsync(to, 2, 3, stream);
    cudaMemsetAsync(to + 2, 3, 1024, stream);
    cudaMemsetAsync(to + 1000, 4, 1025, stream);
    cudaMemsetAsync(to + 2024, 0xff, 2, stream);
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamEndCapture(stream, &graph), "ending a capture");
    if (replace) memsets_to_kernels(graph);
    size_t count = 0;
    cuda_check(cudaGraphGetNodes(graph, nullptr, &count), "counting nodes");
    std::vector<cudaGraphNode_t> nodes(count);
    cuda_check(cudaGraphGetNodes(graph, nodes.data(), &count), "listing nodes");
    *memsets_left = 0;
    for (const cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type{};
        cuda_check(cudaGraphNodeGetType(node, &type), "asking for a node's type");
        *memsets_left += type == cudaGraphNodeTypeMemset;
    }
    cudaGraphExec_t exec = nullptr;
    cuda_check(cudaGraphInstantiate(&exec, graph, 0), "instantiating a graph");
    cuda_check(cudaGraphLaunch(exec, stream), "launching a graph");
    lanes->synchronize();
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    image.back(out);
}
#else
void do_graph_memsets(int *, int, int, int *memsets_left) { *memsets_left = 0; }
void do_own_gelu_forward(float *, float *, const float *, const float *, const float *, int, int, int, int *ran) { *ran = 0; }
void do_own_gelu_backward(float *, float *, const float *, const float *, const float *, int, int, int, int *ran) { *ran = 0; }
#endif

void do_device_count(int *count) { *count = device_count(); }
void do_device_alloc(uint64_t bytes) { device_free(device_alloc(bytes)); }

}  // namespace

#define VISIBLE extern "C" __attribute__((visibility("default")))
#define EXPORT_PLAIN(name, parameters, arguments) \
    VISIBLE const char *op_##name parameters { return guarded([&] { do_##name arguments; }); }
#ifdef LLMC_CUDA
#define EXPORT_BF16(name, parameters, arguments) \
    VISIBLE const char *op_##name##_bf16 parameters { return guarded([&] { do_##name<bf16> arguments; }); }
#else
#define EXPORT_BF16(name, parameters, arguments)
#endif
#define EXPORT(name, parameters, arguments)                                                                           \
    VISIBLE const char *op_##name##_fp32 parameters { return guarded([&] { do_##name<float> arguments; }); }          \
    EXPORT_BF16(name, parameters, arguments)

// clang-format off
EXPORT_PLAIN(configure, (int threads, int tf32, int deterministic, int misaligned), (threads, tf32, deterministic, misaligned))
EXPORT_PLAIN(layout, (const llmc_config *config, int64_t *offset, int64_t *count, int64_t *total), (config, offset, count, total))
EXPORT_PLAIN(graph_memsets, (int *out, int n, int replace, int *memsets_left), (out, n, replace, memsets_left))
EXPORT_PLAIN(own_gelu_forward, (float *out, float *pre, const float *inp, const float *w, const float *b, int N, int C, int OC, int *ran), (out, pre, inp, w, b, N, C, OC, ran))
EXPORT_PLAIN(own_gelu_backward, (float *dpre, float *dsum, const float *dout, const float *w, const float *pre, int N, int C, int OC, int *ran), (dpre, dsum, dout, w, pre, N, C, OC, ran))
EXPORT_PLAIN(device_count, (int *count), (count))
EXPORT_PLAIN(device_alloc, (uint64_t bytes), (bytes))
EXPORT(embedding_forward, (float *out, const int *tokens, const float *wte, const float *wpe, int B, int T, int C, int first, int Vp, int maxT), (out, tokens, wte, wpe, B, T, C, first, Vp, maxT))
EXPORT(embedding_backward, (float *dwte, float *dwpe, const float *dout, const int *tokens, int B, int T, int C, int V, int maxT, int add), (dwte, dwpe, dout, tokens, B, T, C, V, maxT, add))
EXPORT(layernorm_forward, (float *out, float *mean, float *rstd, const float *inp, const float *w, const float *b, int N, int C), (out, mean, rstd, inp, w, b, N, C))
EXPORT(layernorm_backward, (float *dinp, float *dw, float *db, float *dsum, const float *dout, const float *inp, const float *w, const float *mean, const float *rstd, int N, int C, int add_inp, int add_param), (dinp, dw, db, dsum, dout, inp, w, mean, rstd, N, C, add_inp, add_param))
EXPORT(linear_forward, (float *out, const float *inp, const float *w, const float *b, int N, int C, int OC), (out, inp, w, b, N, C, OC))
EXPORT(linear_residual_forward, (float *out, const float *residual, const float *inp, const float *w, const float *b, int N, int C, int OC, int in_place), (out, residual, inp, w, b, N, C, OC, in_place))
EXPORT(linear_gelu_forward, (float *out, float *pre, const float *inp, const float *w, const float *b, int N, int C, int OC), (out, pre, inp, w, b, N, C, OC))
EXPORT(linear_backward_input, (float *dinp, const float *dout, const float *w, int N, int C, int OC), (dinp, dout, w, N, C, OC))
EXPORT(linear_gelu_backward_input, (float *dpre, float *dsum, const float *dout, const float *w, const float *pre, int N, int C, int OC, int add), (dpre, dsum, dout, w, pre, N, C, OC, add))
EXPORT(linear_backward_weight, (float *dw, const float *dout, const float *inp, int N, int C, int OC, int add), (dw, dout, inp, N, C, OC, add))
EXPORT(gelu_forward, (float *out, const float *inp, int64_t n), (out, inp, n))
EXPORT(gelu_backward, (float *dinp, float *dsum, const float *dout, const float *inp, int N, int C, int in_place, int add), (dinp, dsum, dout, inp, N, C, in_place, add))
EXPORT(attention_prepare, (char *note, int note_bytes, int choice, int deterministic, int B, int T, int C, int NH), (note, note_bytes, choice, deterministic, B, T, C, NH))
EXPORT(attention_forward, (float *out, float *lse, const float *qkv, int choice, int deterministic, int B, int T, int C, int NH), (out, lse, qkv, choice, deterministic, B, T, C, NH))
EXPORT(attention_backward, (float *dqkv, float *dsum, const float *dout, const float *qkv, const float *out, const float *lse, int choice, int deterministic, int B, int T, int C, int NH, int add), (dqkv, dsum, dout, qkv, out, lse, choice, deterministic, B, T, C, NH, add))
EXPORT(attention_decode, (float *out, float *cache, const float *qkv, int rows, int T, int position, int C, int NH), (out, cache, qkv, rows, T, position, C, NH))
EXPORT(classifier, (float *losses, float *logits, const int *targets, float dloss, int rows, int V, int Vp, int write_dlogits), (losses, logits, targets, dloss, rows, V, Vp, write_dlogits))
EXPORT_PLAIN(mean_loss, (float *mean, const float *losses, float scale, int N, int add), (mean, losses, scale, N, add))
EXPORT(global_norm_squared, (float *norm_squared, const float *grads, int64_t n), (norm_squared, grads, n))
EXPORT_PLAIN(gate, (llmc_step_result *record, llmc_guard *guard, const llmc_hyper *hyper, int64_t ticket, float loss, float norm_squared), (record, guard, hyper, ticket, loss, norm_squared))
EXPORT(adamw, (float *params, float *master, float *m, float *v, const float *grads, const llmc_config *config, const llmc_hyper *hyper, const llmc_step_result *record, uint64_t rounding), (params, master, m, v, grads, config, hyper, record, rounding))
EXPORT(round_trip, (float *out, const float *inp, int64_t n), (out, inp, n))
// clang-format on
