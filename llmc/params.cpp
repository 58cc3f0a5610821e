#include "params.h"

#include <cmath>
#include <cstring>

#include "error.h"

namespace llmc {

namespace {

llmc_param row(const char *name, bool decayed, float init_std, float init_value, int64_t d0, int64_t d1 = 0, int64_t d2 = 0) {
    llmc_param p{};
    std::strncpy(p.name, name, sizeof p.name - 1);
    p.decayed = decayed;
    p.init_std = init_std;
    p.init_value = init_value;
    for (int64_t d : {d0, d1, d2}) {
        if (d) p.shape[p.dims++] = d;
    }
    p.count = d0 * (d1 ? d1 : 1) * (d2 ? d2 : 1);
    return p;
}

void check_range(const char *what, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        fail(LLMC_INVALID, "%s is %lld, expected %lld to %lld", what, (long long)value, (long long)low, (long long)high);
    }
}

}  // namespace

ParamTable param_table(const llmc_config &config) {
    const int64_t L = config.layers, C = config.channels, T = config.context, Vp = padded_vocab(config.vocab);
    const float std = 0.02f;
    // Two projections per layer add to the residual stream; scaling them keeps its variance flat in depth.
    const float residual_std = float(0.02 / std::sqrt(2.0 * double(L)));
    return {{
        row("wte", true, std, 0, Vp, C),
        row("wpe", true, std, 0, T, C),
        row("ln1w", false, 0, 1, L, C),
        row("ln1b", false, 0, 0, L, C),
        row("qkvw", true, std, 0, L, 3 * C, C),
        row("qkvb", false, 0, 0, L, 3 * C),
        row("attprojw", true, residual_std, 0, L, C, C),
        row("attprojb", false, 0, 0, L, C),
        row("ln2w", false, 0, 1, L, C),
        row("ln2b", false, 0, 0, L, C),
        row("fcw", true, std, 0, L, 4 * C, C),
        row("fcb", false, 0, 0, L, 4 * C),
        row("fcprojw", true, residual_std, 0, L, C, 4 * C),
        row("fcprojb", false, 0, 0, L, C),
        row("lnfw", false, 0, 1, C),
        row("lnfb", false, 0, 0, C),
    }};
}

ParamLayout param_layout(const ParamTable &table, int64_t layers) {
    ParamLayout layout;
    for (int i = 0; i < LLMC_NUM_PARAMS; i++) {
        const bool stacked = i != WTE && i != WPE && i != LNFW && i != LNFB;
        layout.offset[i] = layout.total;
        layout.count[i] = table[i].count;
        layout.per_layer[i] = stacked ? table[i].count / layers : table[i].count;
        layout.total += (table[i].count + 63) / 64 * 64;
    }
    return layout;
}

void check_config(const llmc_config &c) {
    check_range("config.context", c.context, 1, 1 << 20);
    check_range("config.vocab", c.vocab, 1, 1 << 24);
    check_range("config.layers", c.layers, 1, 4096);
    check_range("config.heads", c.heads, 1, 1 << 16);
    check_range("config.channels", c.channels, 1, 1 << 20);
    if (c.channels % c.heads != 0) {
        fail(LLMC_INVALID, "config.channels %d is not divisible by config.heads %d", c.channels, c.heads);
    }
}

void check_options(const llmc_config &c, const llmc_options &o) {
    check_range("options.batch", o.batch, 1, 1 << 20);
    check_range("options.seq_len", o.seq_len, 1, c.context);
    check_range("options.batch * options.seq_len", int64_t(o.batch) * o.seq_len, 1, 1 << 30);
    check_range("options.device", o.device, 0, 1023);
    check_range("options.threads", o.threads, 0, 4096);
    check_range("options.train", o.train, 0, 1);
    check_range("options.precision", o.precision, LLMC_FP32, LLMC_BF16);
    check_range("options.master_weights", o.master_weights, 0, 1);
    check_range("options.tf32", o.tf32, 0, 1);
    check_range("options.recompute", o.recompute, 0, 2);
    check_range("options.gelu_fusion", o.gelu_fusion, 0, 2);
    check_range("options.attention", o.attention, LLMC_ATTENTION_AUTO, LLMC_ATTENTION_OWN);
    check_range("options.tune", o.tune, 0, 1);
    check_range("options.head_chunks", o.head_chunks, 1, int64_t(o.batch) * o.seq_len);
    check_range("options.deterministic", o.deterministic, 0, 1);
    if (o.streams != 1 && o.streams != 4) fail(LLMC_INVALID, "options.streams is %d, expected 1 or 4", o.streams);
    check_range("options.graph", o.graph, 0, 1);
    check_range("options.prefetch", o.prefetch, 0, LLMC_PREFETCH_HOST | LLMC_PREFETCH_L2);
    check_range("options.slots", o.slots, 2, 64);
    check_range("options.results", o.results, 2, 1024);
    check_range("options.stress", o.stress, 0, 1000000);
    check_range("options.drop_edge", o.drop_edge, -1, 63);
    check_range("options.world", o.world, 1, 1 << 16);
    check_range("options.rank", o.rank, 0, o.world - 1);
    check_range("options.zero_stage", o.zero_stage, 0, 1);
}

void check_hyper(const llmc_hyper &h) {
    const auto in = [](const char *what, double value, double low, double high) {
        if (!(value >= low && value <= high)) fail(LLMC_INVALID, "hyper.%s is %g, expected %g to %g", what, value, low, high);
    };
    in("learning_rate", h.learning_rate, 0, 1e6);
    in("beta1", h.beta1, 0, 0.9999999);
    in("beta2", h.beta2, 0, 0.9999999);
    in("eps", h.eps, 1e-20, 1e6);  // 0 would make 0/0 of weights that never had a gradient
    in("weight_decay", h.weight_decay, 0, 1e6);
    in("grad_clip", h.grad_clip, 0, 1e30);
    in("max_loss_z", h.max_loss_z, 0, 1e30);
    in("max_norm_z", h.max_norm_z, 0, 1e30);
    in("step", double(h.step), 1, 1e15);
}

}  // namespace llmc
