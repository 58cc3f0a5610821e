// api.cpp - the extern "C" bodies of llmc.h: check pointers, call inward, turn a throw into a status
// and a sentence. Nothing else lives here.
#include <cstring>
#include <new>

#include "error.h"
#include "llmc.h"
#include "model.h"
#include "ops.h"
#include "sampler.h"

using namespace llmc;

struct llmc_model {
    std::unique_ptr<Model> inner;
    int device = 0;
    std::string notes;
};

namespace {

thread_local std::string last_error;

void remember(const char *function, const char *text) noexcept {
    try {
        last_error.assign(function).append(": ").append(text);
    } catch (...) {  // no memory even for the message
        last_error.clear();
    }
}

// The one way in: no exception passes it.
template <class Body>
llmc_status guarded(const char *function, Model *model, Body &&body) noexcept {
    try {
        if (model) model->require_sound();
        body();
        return LLMC_OK;
    } catch (const Error &e) {
        remember(function, e.what());
        if (e.status == LLMC_DEVICE && model) model->poison(e.what());
        return e.status;
    } catch (const std::bad_alloc &) {
        remember(function, "out of host memory");
        return LLMC_NO_MEMORY;
    } catch (const std::exception &e) {
        remember(function, e.what());
        return LLMC_INTERNAL;
    } catch (...) {
        remember(function, "unknown failure");
        return LLMC_INTERNAL;
    }
}

template <class P>
void require(const P *pointer, const char *what) {
    if (!pointer) fail(LLMC_INVALID, "%s is NULL", what);
}

// A body that needs a live model: its device is made current for this thread.
template <class Body>
llmc_status with_model(const char *function, llmc_model *model, Body &&body) noexcept {
    Model *inner = model ? model->inner.get() : nullptr;
    return guarded(function, inner, [&] {
        require(inner, "model");
        const DeviceScope scope(model->device);
        body(*inner);
    });
}

const char *backend_name() {
#ifdef LLMC_CUDA
    return "cuda";
#else
    return "cpu";
#endif
}

void check_create(const llmc_config *config, const llmc_options *options) {
    require(config, "config");
    require(options, "options");
    check_config(*config);
    check_options(*config, *options);
    const int devices = device_count();
    if (options->device >= devices) fail(LLMC_INVALID, "options.device is %d, but this machine has %d %s device%s", options->device, devices, backend_name(), devices == 1 ? "" : "s");
    if (options->world > 1) fail(LLMC_UNAVAILABLE, "options.world is %d, but this build trains on one device", options->world);
}

}  // namespace

extern "C" {

int32_t llmc_abi_version(void) { return LLMC_ABI_VERSION; }

int64_t llmc_struct_size(const char *name) {
    if (!name) return 0;
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {
        {"config", sizeof(llmc_config)}, {"options", sizeof(llmc_options)}, {"hyper", sizeof(llmc_hyper)},
        {"step_result", sizeof(llmc_step_result)}, {"slot", sizeof(llmc_slot)}, {"param", sizeof(llmc_param)},
        {"memory", sizeof(llmc_memory)}, {"device", sizeof(llmc_device)}, {"span", sizeof(llmc_span)},
        {"sampling", sizeof(llmc_sampling)}, {"guard", sizeof(llmc_guard)},
    };
    for (const auto &s : sizes) {
        if (!std::strcmp(s.name, name)) return s.size;
    }
    return 0;
}

const char *llmc_last_error(void) { return last_error.c_str(); }
const char *llmc_backend(void) { return backend_name(); }

const char *llmc_build_info(void) {
    static thread_local std::string text;
    try {
        text = build_info();
    } catch (const std::exception &e) {
        text = e.what();
    }
    return text.c_str();
}

llmc_status llmc_device_count(int32_t *count) {
    return guarded("llmc_device_count", nullptr, [&] {
        require(count, "count");
        *count = device_count();
    });
}

llmc_status llmc_device_info(int32_t device, llmc_device *info) {
    return guarded("llmc_device_info", nullptr, [&] {
        require(info, "info");
        const int devices = device_count();
        if (device < 0 || device >= devices) fail(LLMC_INVALID, "device is %d, but this machine has %d", device, devices);
        *info = device_info(device);
    });
}

llmc_status llmc_comm_id(uint8_t *id, int64_t bytes) {
    return guarded("llmc_comm_id", nullptr, [&] {
        require(id, "id");
        if (bytes != LLMC_COMM_ID_BYTES) fail(LLMC_INVALID, "bytes is %lld, expected %d", (long long)bytes, int(LLMC_COMM_ID_BYTES));
        fail(LLMC_UNAVAILABLE, "this build trains on one device");
    });
}

const char *llmc_tuning_export(void) {
    static thread_local std::string text;
    text.clear();
    guarded("llmc_tuning_export", nullptr, [&] { text = linear_export_tuning(); });
    return text.c_str();
}

llmc_status llmc_tuning_import(const char *text) {
    return guarded("llmc_tuning_import", nullptr, [&] {
        require(text, "text");
        linear_import_tuning(text);
    });
}

void llmc_options_default(llmc_options *options) {
    if (!options) return;
    *options = llmc_options{};
    options->batch = 4;
    options->seq_len = 1024;
    options->train = 1;
#ifdef LLMC_CUDA
    options->precision = LLMC_BF16;
    options->gelu_fusion = 2;
#else
    options->precision = LLMC_FP32;
#endif
    options->master_weights = 1;
    options->tf32 = 1;
    options->recompute = 0;
    options->attention = LLMC_ATTENTION_AUTO;
    options->tune = 1;
    options->head_chunks = 1;
    options->streams = 4;
    options->graph = 1;
    options->prefetch = LLMC_PREFETCH_HOST;
    options->slots = 3;
    options->results = 4;
    options->drop_edge = -1;
    options->world = 1;
    options->seed = 1337;
}

void llmc_hyper_default(llmc_hyper *hyper) {
    if (!hyper) return;
    *hyper = llmc_hyper{};
    hyper->learning_rate = 3e-4f;
    hyper->beta1 = 0.9f;
    hyper->beta2 = 0.95f;
    hyper->eps = 1e-8f;
    hyper->weight_decay = 0.0f;
    hyper->grad_clip = 1.0f;
    hyper->step = 1;
}

llmc_status llmc_memory_plan(const llmc_config *config, const llmc_options *options, llmc_memory *plan) {
    return guarded("llmc_memory_plan", nullptr, [&] {
        require(plan, "plan");
        check_create(config, options);
        const DeviceScope scope(options->device);
        *plan = plan_memory(*config, *options);
    });
}

llmc_status llmc_model_create(const llmc_config *config, const llmc_options *options, llmc_model **model) {
    return guarded("llmc_model_create", nullptr, [&] {
        require(model, "model");
        check_create(config, options);
        const DeviceScope scope(options->device);
        auto handle = std::make_unique<llmc_model>();
        handle->device = options->device;
        handle->inner = make_model(*config, *options);
        *model = handle.release();
    });
}

void llmc_model_free(llmc_model *model) {
    if (!model) return;
    guarded("llmc_model_free", nullptr, [&] {
        const DeviceScope scope(model->device);
        model->inner.reset();
    });
    delete model;
}

llmc_status llmc_model_options(llmc_model *model, llmc_options *options) {
    return with_model("llmc_model_options", model, [&](Model &m) {
        require(options, "options");
        *options = m.options;
    });
}

llmc_status llmc_synchronize(llmc_model *model) {
    return with_model("llmc_synchronize", model, [](Model &m) { m.lanes.synchronize(); });
}

const char *llmc_model_notes(llmc_model *model) {
    if (!model || !model->inner) return "";
    guarded("llmc_model_notes", nullptr, [&] { model->notes = model->inner->lanes.take_notes(); });
    return model->notes.c_str();
}

llmc_status llmc_param_info(const llmc_config *config, int32_t index, llmc_param *info) {
    return guarded("llmc_param_info", nullptr, [&] {
        require(config, "config");
        require(info, "info");
        check_config(*config);
        if (index < 0 || index >= LLMC_NUM_PARAMS) fail(LLMC_INVALID, "index is %d, expected 0 to %d", index, LLMC_NUM_PARAMS - 1);
        *info = param_table(*config)[size_t(index)];
    });
}

llmc_status llmc_tensor_read(llmc_model *model, int32_t kind, int32_t index, int32_t dtype, void *buffer, int64_t bytes) {
    return with_model("llmc_tensor_read", model, [&](Model &m) {
        require(buffer, "buffer");
        m.read_tensor(kind, index, dtype, buffer, bytes);
    });
}

llmc_status llmc_tensor_write(llmc_model *model, int32_t kind, int32_t index, int32_t dtype, const void *buffer, int64_t bytes) {
    return with_model("llmc_tensor_write", model, [&](Model &m) {
        require(buffer, "buffer");
        m.write_tensor(kind, index, dtype, buffer, bytes);
    });
}

llmc_status llmc_slot_acquire(llmc_model *model, int32_t wait_ms, llmc_slot *slot) {
    return with_model("llmc_slot_acquire", model, [&](Model &m) {
        require(slot, "slot");
        *slot = m.batches.acquire(wait_ms);
    });
}

llmc_status llmc_slot_submit(llmc_model *model, int32_t slot) {
    return with_model("llmc_slot_submit", model, [&](Model &m) { m.batches.submit(slot); });
}

llmc_status llmc_slot_release(llmc_model *model, int32_t slot) {
    return with_model("llmc_slot_release", model, [&](Model &m) { m.batches.release(slot); });
}

llmc_status llmc_micro_step(llmc_model *model, int32_t slot, int32_t i, int32_t n) {
    return with_model("llmc_micro_step", model, [&](Model &m) { m.micro_step(slot, i, n); });
}

llmc_status llmc_update(llmc_model *model, const llmc_hyper *hyper, int64_t *ticket) {
    return with_model("llmc_update", model, [&](Model &m) {
        require(hyper, "hyper");
        require(ticket, "ticket");
        *ticket = m.update(*hyper);
    });
}

llmc_status llmc_result(llmc_model *model, int64_t ticket, int32_t wait_ms, llmc_step_result *result) {
    return with_model("llmc_result", model, [&](Model &m) {
        require(result, "result");
        *result = m.result(ticket, wait_ms);
    });
}

llmc_status llmc_eval(llmc_model *model, int32_t slot, float *losses, float *mean) {
    return with_model("llmc_eval", model, [&](Model &m) {
        require(mean, "mean");
        *mean = m.eval(slot, losses);
    });
}

llmc_status llmc_logits(llmc_model *model, int32_t slot, float *logits, int64_t bytes) {
    return with_model("llmc_logits", model, [&](Model &m) {
        require(logits, "logits");
        m.logits(slot, logits, bytes);
    });
}

llmc_status llmc_rng_get(llmc_model *model, uint64_t *now, uint64_t *before) {
    return with_model("llmc_rng_get", model, [&](Model &m) {
        require(now, "now");
        require(before, "before");
        *now = m.rounding_now;
        *before = m.rounding_before;
    });
}

llmc_status llmc_rng_set(llmc_model *model, uint64_t now) {
    return with_model("llmc_rng_set", model, [&](Model &m) { m.rounding_now = m.rounding_before = now; });
}

llmc_status llmc_guard_get(llmc_model *model, llmc_guard *guard) {
    return with_model("llmc_guard_get", model, [&](Model &m) {
        require(guard, "guard");
        m.read_guard(guard);
    });
}

llmc_status llmc_guard_set(llmc_model *model, const llmc_guard *guard) {
    return with_model("llmc_guard_set", model, [&](Model &m) {
        require(guard, "guard");
        m.write_guard(*guard);
    });
}

llmc_status llmc_snapshot_take(llmc_model *model) {
    return with_model("llmc_snapshot_take", model, [](Model &m) { m.take_snapshot(); });
}

llmc_status llmc_snapshot_read(llmc_model *model, int32_t kind, int32_t index, int32_t dtype, void *buffer, int64_t bytes) {
    return with_model("llmc_snapshot_read", model, [&](Model &m) {
        require(buffer, "buffer");
        m.read_snapshot(kind, index, dtype, buffer, bytes);
    });
}

llmc_status llmc_snapshot_guard(llmc_model *model, llmc_guard *guard) {
    return with_model("llmc_snapshot_guard", model, [&](Model &m) {
        require(guard, "guard");
        m.read_snapshot_guard(guard);
    });
}

llmc_status llmc_snapshot_release(llmc_model *model) {
    return with_model("llmc_snapshot_release", model, [](Model &m) { m.snapshot.release(); });
}

llmc_status llmc_prefill(llmc_model *model, const int32_t *tokens, int32_t rows, int32_t n, float *logits) {
    return with_model("llmc_prefill", model, [&](Model &m) {
        require(tokens, "tokens");
        require(logits, "logits");
        m.prefill(tokens, rows, n, logits);
    });
}

llmc_status llmc_decode(llmc_model *model, const int32_t *tokens, float *logits) {
    return with_model("llmc_decode", model, [&](Model &m) {
        require(tokens, "tokens");
        require(logits, "logits");
        m.decode(tokens, logits);
    });
}

llmc_status llmc_sample(const float *logits, int32_t vocab, const llmc_sampling *how, uint64_t *state, int32_t *token) {
    return guarded("llmc_sample", nullptr, [&] {
        require(logits, "logits");
        require(how, "how");
        require(state, "state");
        require(token, "token");
        *token = sample(logits, vocab, *how, state);
    });
}

llmc_status llmc_timeline_arm(llmc_model *model) {
    return with_model("llmc_timeline_arm", model, [](Model &m) { m.arm_timeline(); });
}

llmc_status llmc_timeline_read(llmc_model *model, llmc_span *spans, int32_t capacity, int32_t *count) {
    return with_model("llmc_timeline_read", model, [&](Model &m) {
        require(count, "count");
        if (capacity < 0) fail(LLMC_INVALID, "capacity is %d, expected 0 or more", capacity);
        if (capacity > 0) require(spans, "spans");
        const auto all = m.read_timeline();
        std::copy_n(all.begin(), std::min<size_t>(all.size(), size_t(capacity)), spans);
        *count = int32_t(all.size());
    });
}

}  // extern "C"
