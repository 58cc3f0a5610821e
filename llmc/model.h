// model.h - what api.cpp sees of a model, whatever its storage type. The mathematics is in train_gpt2.cu.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "arena.h"
#include "batch_ring.h"
#include "lanes.h"
#include "params.h"
#include "snapshot.h"

namespace llmc {

class Model {
  public:
    Model(const llmc_config &config, const llmc_options &options);
    virtual ~Model() = default;

    virtual void micro_step(int slot, int i, int n) = 0;
    virtual int64_t update(const llmc_hyper &hyper) = 0;
    virtual llmc_step_result result(int64_t ticket, int wait_ms) = 0;
    virtual float eval(int slot, float *losses) = 0;
    virtual void logits(int slot, float *out, int64_t bytes) = 0;
    virtual void read_tensor(int kind, int index, int dtype, void *buffer, int64_t bytes) = 0;
    virtual void write_tensor(int kind, int index, int dtype, const void *buffer, int64_t bytes) = 0;
    virtual void prefill(const int *tokens, int rows, int n, float *logits) = 0;
    virtual void decode(const int *tokens, float *logits) = 0;
    virtual void read_guard(llmc_guard *guard) = 0;
    virtual void write_guard(const llmc_guard &guard) = 0;
    virtual void take_snapshot() = 0;
    virtual void read_snapshot(int kind, int index, int dtype, void *buffer, int64_t bytes) = 0;
    virtual void read_snapshot_guard(llmc_guard *guard) = 0;
    virtual void arm_timeline() = 0;
    virtual std::vector<llmc_span> read_timeline() = 0;

    const llmc_config config;
    const llmc_options options;
    Lanes lanes;
    BatchRing batches;
    Snapshot snapshot;
    uint64_t rounding_now, rounding_before;  // stochastic-rounding generator

    // After a device error nothing that the device holds can be trusted.
    void poison(const std::string &message);
    void require_sound() const;

  private:
    std::atomic<bool> poisoned_{false};
    mutable std::mutex poison_mutex_;
    std::string poison_message_;
};

std::unique_ptr<Model> make_model(const llmc_config &config, const llmc_options &options);
llmc_memory plan_memory(const llmc_config &config, const llmc_options &options);

}  // namespace llmc
