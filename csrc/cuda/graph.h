// Graph: the kernels of a step, captured while the model's forward runs, and launched again in one
// call. Pointers and shapes are bound at capture; what varies is read from memory that the caller
// keeps. Memory of the step comes from a pool that lives as long as the graph.
#pragma once

#include <memory>

#include "cuda/context.h"

namespace pyvt::cuda {

class Graph {
 public:
  explicit Graph(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Capture the ops from now on, with memory of `pool`.
  void start(std::shared_ptr<Pool> pool);
  // End the capture and run what was captured once; nothing ran before.
  void stop();
  void run();
  // End the capture and forget it; nothing ran.
  void abandon();

  int64_t num_kernels() const { return num_kernels_; }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<Pool> pool_, outer_pool_;
  cudaGraphExec_t exec_ = nullptr;
  int64_t num_kernels_ = 0;
  bool is_capturing_ = false;
};

}  // namespace pyvt::cuda
