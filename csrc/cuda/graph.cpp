// Capture and replay; see graph.h.
#include "cuda/graph.h"

namespace pyvt::cuda {

Graph::~Graph() {
  abandon();
  if (exec_ != nullptr) {
    (void)cudaStreamSynchronize(context_->stream());
    (void)cudaGraphExecDestroy(exec_);
  }
}

void Graph::start(std::shared_ptr<Pool> pool) {
  PYVT_CHECK("graph", exec_ == nullptr && !is_capturing_, "expected a new graph, got a used one");
  check(cudaStreamBeginCapture(context_->stream(), cudaStreamCaptureModeRelaxed), "capture");
  is_capturing_ = context_->is_capturing = true;
  pool_ = pool;
  pool_->keep();
  outer_pool_ = context_->use_pool(std::move(pool));
  num_kernels_ = -context_->num_launches;
}

void Graph::stop() {
  PYVT_CHECK("graph", is_capturing_, "expected a capture, got none");
  is_capturing_ = context_->is_capturing = false;
  context_->use_pool(std::move(outer_pool_));
  num_kernels_ += context_->num_launches;
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(context_->stream(), &graph), "capture");
  const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  run();
}

void Graph::abandon() {
  if (!is_capturing_) return;
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(context_->stream(), &graph);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  is_capturing_ = context_->is_capturing = false;
  context_->use_pool(std::move(outer_pool_));
}

void Graph::run() {
  PYVT_CHECK("graph", exec_ != nullptr, "expected a captured graph");
  ++context_->num_launches;
  check(cudaGraphLaunch(exec_, context_->stream()), "cudaGraphLaunch");
}

}  // namespace pyvt::cuda
