#include "engine/engine_thread.h"

#include <gtest/gtest.h>

#include <atomic>

#include "engine/testing/rig.h"

namespace kadence::engine::testing {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Engine> make_engine(const std::function<void(FakeModel&)>& prepare = {}) {
  auto model = std::make_unique<FakeModel>();
  if (prepare) prepare(*model);
  EngineOptions options;
  options.max_running_requests = 8;
  options.chunked_prefill_size = 512;
  const MemoryPlan plan = fake_plan(*model, options, 24, 64);
  return std::make_unique<Engine>(std::move(model), options, plan, device::Stream::cpu(1));
}

// What a client keeps of its request.
struct Client {
  std::promise<RequestOutput> done;
  Ids tokens;  // written by the engine thread before `done`
  RequestId id;
  RequestOutput wait() {
    auto future = done.get_future();
    if (future.wait_for(20s) != std::future_status::ready) {
      ADD_FAILURE() << "no answer";
      return {};
    }
    return future.get();
  }
};

std::unique_ptr<Client> submit(EngineThread& thread, const RequestSpec& spec) {
  auto client = std::make_unique<Client>();
  Client* c = client.get();
  auto answer = thread.submit(spec, {[c](const TokenEvent& e) { c->tokens.push_back(e.token); },
                                     [c](RequestOutput out) { c->done.set_value(std::move(out)); }});
  const auto result = answer.get();
  EXPECT_TRUE(result.ok()) << result.reason();
  if (result.ok()) c->id = result.value();
  return client;
}

TEST(EngineThread, ServesManyThreadsAtOnce) {
  EngineThread thread(make_engine());
  std::vector<std::thread> clients;
  std::atomic<int> right = 0;
  for (uint64_t t = 0; t < 4; ++t) {
    clients.emplace_back([&, t] {
      for (uint64_t i = 0; i < 10; ++i) {
        const RequestSpec spec = generate(some_tokens((t + i) % 6, 150 + static_cast<int64_t>(i) * 20), 20);
        auto client = submit(thread, spec);
        const RequestOutput out = client->wait();
        const RequestOutput want = naive_run(spec);
        right += out.output_ids == want.output_ids && out.output_logprobs == want.output_logprobs &&
                 client->tokens == out.output_ids;
      }
    });
  }
  for (std::thread& c : clients) c.join();
  EXPECT_EQ(right, 40);
  const EngineStats s = thread.stats().get();
  EXPECT_EQ(s.finished, 40);
  EXPECT_GT(s.hits, 0);
}

TEST(EngineThread, RefusalsCancelsFlushesAndPredictionsAreValues) {
  EngineThread thread(make_engine());
  EXPECT_THAT(thread.submit(generate({}, 1), {}).get().reason(), ::testing::HasSubstr("empty prompt"));
  const RequestSpec spec = generate(some_tokens(1, 200), 1);
  submit(thread, spec)->wait();
  EXPECT_EQ(thread.predict_cached_tokens(spec).get(), 192);
  EXPECT_EQ(thread.flush_cache().get().states, 1);
  EXPECT_EQ(thread.predict_cached_tokens(spec).get(), 0);
  EXPECT_FALSE(thread.cancel(RequestId(12345)).get());
  auto client = submit(thread, generate(some_tokens(2, 100), 3900));
  EXPECT_TRUE(thread.cancel(client->id).get());
  EXPECT_EQ(client->wait().reason, FinishReason::kCancelled);
}

TEST(EngineThread, ShutdownLetsRequestsFinish) {
  EngineThread thread(make_engine());
  const RequestSpec spec = generate(some_tokens(1, 200), 100);
  auto client = submit(thread, spec);
  thread.shutdown(60s);
  expect_same(client->wait(), naive_run(spec));
  EXPECT_THAT(thread.submit(spec, {}).get().reason(), ::testing::HasSubstr("shut down"));
  EXPECT_FALSE(thread.cancel(client->id).get());
  EXPECT_EQ(thread.stats().get().finished, 0) << "nothing is asked any more";
}

TEST(EngineThread, ShutdownCancelsWhatIsLeft) {
  std::unique_ptr<Client> client, waiting;
  {
    EngineThread thread(make_engine(
        [](FakeModel& m) { m.on_forward = [](const model::ForwardBatch&) { std::this_thread::sleep_for(1ms); }; }));
    client = submit(thread, generate(some_tokens(1, 50), 3000));
    waiting = submit(thread, generate(some_tokens(2, 50), 3000));
  }
  EXPECT_EQ(client->wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting->wait().reason, FinishReason::kCancelled);
}

TEST(EngineThread, AModelThatThrowsEndsRequestsNotTheProcess) {
  EngineThread thread(make_engine([](FakeModel& m) { m.fail_in = 0; }));
  EXPECT_THAT(submit(thread, generate(some_tokens(1, 50), 3))->wait().error, ::testing::HasSubstr("planted failure"));
  const RequestSpec spec = generate(some_tokens(1, 50), 3);
  expect_same(submit(thread, spec)->wait(), naive_run(spec));
  EXPECT_EQ(thread.failure(), "");
}

// A clock that throws stands for a broken invariant: the exception leaves step() itself.
class FailingClock final : public base::Clock {
 public:
  double now() const override {
    if (broken) base::throw_error(base::ErrorCode::kInternal, "planted in the engine");
    return 0;
  }
  std::atomic<bool> broken = false;
};

TEST(EngineThread, AnEngineThatThrowsAnswersEverybodyAndTakesNoMore) {
  FailingClock clock;
  auto model = std::make_unique<FakeModel>();
  model->on_forward = [&](const model::ForwardBatch&) { clock.broken = true; };
  EngineOptions options;
  const MemoryPlan plan = fake_plan(*model, options, 24, 64);
  EngineThread thread(std::make_unique<Engine>(std::move(model), options, plan, device::Stream::cpu(1), &clock));
  const RequestOutput out = submit(thread, generate(some_tokens(1, 50), 3))->wait();
  EXPECT_EQ(out.reason, FinishReason::kError);
  EXPECT_THAT(out.error, ::testing::HasSubstr("planted in the engine"));
  EXPECT_THAT(thread.submit(generate(some_tokens(1, 50), 3), {}).get().reason(), ::testing::HasSubstr("has failed"));
  EXPECT_THAT(thread.failure(), ::testing::HasSubstr("planted in the engine"));
}

TEST(EngineThread, AListenerThatThrowsEndsItsRequestOnly) {
  EngineThread thread(make_engine());
  std::promise<RequestOutput> done;
  thread.submit(generate(some_tokens(1, 50), 500), {[](const TokenEvent&) { throw std::runtime_error("listener"); },
                                                    [&](RequestOutput out) { done.set_value(std::move(out)); }});
  EXPECT_EQ(done.get_future().get().reason, FinishReason::kCancelled);
  const RequestSpec spec = generate(some_tokens(1, 50), 3);
  expect_same(submit(thread, spec)->wait(), naive_run(spec));
}

TEST(EngineThread, AnswersComeFirstAndOnce) {
  EngineThread thread(make_engine());
  std::promise<std::string> log;
  auto text = std::make_shared<std::string>();
  const RequestSpec spec = generate(some_tokens(1, 100), 2);
  EngineThread::Listener listener;
  listener.on_token = [text](const TokenEvent&) { *text += 't'; };
  listener.on_finish = [text, &log](RequestOutput) { log.set_value(*text + 'f'); };
  listener.on_answer = [text](const base::Result<RequestId>& id) { *text += id ? 'a' : 'r'; };
  thread.submit(spec, listener);
  EXPECT_EQ(log.get_future().get(), "attf");
}

TEST(EngineThread, CallsRunBetweenStepsUntilTheEnd) {
  EngineThread thread(make_engine());
  submit(thread, generate(some_tokens(1, 200), 4))->wait();
  std::promise<int64_t> finished;
  EXPECT_TRUE(thread.call([&](Engine& e) { finished.set_value(e.stats().finished); }));
  EXPECT_EQ(finished.get_future().get(), 1);
  thread.stats().get();  // a step's end later
  EXPECT_EQ(thread.last_stats().finished, 1);
  thread.shutdown(1s);
  EXPECT_FALSE(thread.call([](Engine&) { FAIL() << "ran after the end"; }));
  bool refused = false;
  EngineThread::Listener listener;
  listener.on_answer = [&](const base::Result<RequestId>& id) { refused = !id; };
  thread.submit(generate(some_tokens(1, 10), 1), listener);
  EXPECT_TRUE(refused);
}

}  // namespace
}  // namespace kadence::engine::testing
