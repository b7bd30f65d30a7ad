#include "apps/load_client.h"

#include <fmt/core.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "apps/cli.h"
#include "base/rng.h"

namespace kadence::apps {
namespace {

using Time = std::chrono::steady_clock::time_point;
double since(Time begin) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); }

// A TCP connection that reads lines. Throws std::runtime_error in words.
class Line {
 public:
  Line(const ApiUrl& url, double timeout) {
    addrinfo hints{}, *list = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int e = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &list); e != 0)
      throw std::runtime_error(url.host + ": " + gai_strerror(e));
    for (const addrinfo* a = list; a != nullptr && fd_ < 0; a = a->ai_next) {
      fd_ = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
      if (fd_ < 0) continue;
      timeval limit{static_cast<time_t>(timeout), 0};
      setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      if (::connect(fd_, a->ai_addr, a->ai_addrlen) != 0) {
        ::close(fd_);
        fd_ = -1;
      }
    }
    freeaddrinfo(list);
    if (fd_ < 0)
      throw std::runtime_error(fmt::format("{}:{} does not answer ({})", url.host, url.port, std::strerror(errno)));
  }
  ~Line() { ::close(fd_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void send(const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = ::send(fd_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (n <= 0) throw std::runtime_error(std::string("sending: ") + std::strerror(errno));
      done += static_cast<size_t>(n);
    }
  }
  // Without its end; nothing at the end of the stream. Chunk sizes come as lines too; they are no "data:" and do no
  // harm.
  std::optional<std::string> next() {
    while (true) {
      const size_t end = buffer_.find('\n', at_);
      if (end != std::string::npos) {
        std::string line = buffer_.substr(at_, end - at_);
        at_ = end + 1;
        if (!line.empty() && line.back() == '\r') line.pop_back();
        return line;
      }
      buffer_.erase(0, at_);
      at_ = 0;
      char piece[16384];
      const ssize_t n = ::recv(fd_, piece, sizeof piece, 0);
      if (n < 0)
        throw std::runtime_error(errno == EAGAIN ? "timed out" : std::string("reading: ") + std::strerror(errno));
      if (n == 0) return std::nullopt;
      buffer_.append(piece, static_cast<size_t>(n));
    }
  }

 private:
  int fd_ = -1;
  std::string buffer_;
  size_t at_ = 0;
};

std::vector<int32_t> ids(uint64_t seed, size_t count, int vocab) {
  base::Rng rng(seed);
  std::vector<int32_t> out(count);
  for (int32_t& id : out) id = static_cast<int32_t>(5 + rng.below(static_cast<uint64_t>(vocab - 5)));
  return out;
}

LoadSample ask(const LoadPlan& plan, const std::vector<int32_t>& prompt, int output_tokens, Time due) {
  LoadSample s;
  try {
    nlohmann::json body = {{"prompt", prompt}, {"max_tokens", output_tokens},
                           {"temperature", 0}, {"ignore_eos", true},
                           {"stream", true},   {"stream_options", {{"include_usage", true}}}};
    if (!plan.model.empty()) body["model"] = plan.model;
    const std::string text = body.dump();
    std::string head = fmt::format(
        "POST {}/completions HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        "Content-Length: {}\r\n",
        plan.url.prefix, plan.url.host, plan.url.port, text.size());
    if (!plan.api_key.empty()) head += "Authorization: Bearer " + plan.api_key + "\r\n";
    Line line(plan.url, plan.timeout);
    line.send(head + "\r\n" + text);
    const std::string status = line.next().value_or("");
    const bool good = status.find(" 200") != std::string::npos;
    std::string rest;
    bool done = false;
    double last = 0;
    while (const auto l = line.next()) {
      if (!good && rest.size() < 2000) rest += *l;
      if (l->rfind("data: ", 0) != 0) continue;
      if (*l == "data: [DONE]") {
        done = true;
        break;
      }
      const auto event = nlohmann::json::parse(l->substr(6));
      if (event.contains("error")) throw std::runtime_error(event["error"].value("message", "error event"));
      if (event.contains("usage") && event["usage"].is_object()) {
        const auto& u = event["usage"];
        s.prompt_tokens = u.value("prompt_tokens", int64_t{0});
        s.output_tokens = u.value("completion_tokens", int64_t{0});
        if (u.contains("prompt_tokens_details") && u["prompt_tokens_details"].is_object())
          s.cached_tokens = u["prompt_tokens_details"].value("cached_tokens", int64_t{0});
      }
      if (event["choices"].empty() || event["choices"][0].value("text", "").empty()) continue;
      const double now = since(due);
      if (s.first_token == 0)
        s.first_token = now;
      else
        s.gaps.push_back(now - last);
      last = now;
    }
    if (!good) throw std::runtime_error(status + " " + rest.substr(0, 300));
    if (!done) throw std::runtime_error("the stream ended before its end");
    s.total = since(due);
    if (s.first_token == 0) s.first_token = s.total;
  } catch (const std::exception& e) {
    s.error = *e.what() ? e.what() : "failed";
  }
  return s;
}

}  // namespace

ApiUrl parse_api_url(const std::string& flag, const std::string& url) {
  if (url.rfind("https://", 0) == 0) throw UsageError(flag + ": https is not supported, only http");
  if (url.rfind("http://", 0) != 0) throw UsageError(fmt::format("{}: wanted http://host:port, got '{}'", flag, url));
  ApiUrl out;
  std::string rest = url.substr(7);
  const size_t slash = rest.find('/');
  if (slash != std::string::npos) {
    out.prefix = rest.substr(slash);
    rest.resize(slash);
  }
  while (!out.prefix.empty() && out.prefix.back() == '/') out.prefix.pop_back();
  if (out.prefix.empty()) out.prefix = "/v1";
  const size_t colon = rest.rfind(':');
  out.host = rest.substr(0, colon);
  out.port = colon == std::string::npos ? "80" : rest.substr(colon + 1);
  if (out.host.empty() || out.port.empty() || out.port.find_first_not_of("0123456789") != std::string::npos)
    throw UsageError(fmt::format("{}: wanted http://host:port, got '{}'", flag, url));
  return out;
}

LoadRun run_load(const LoadPlan& plan) {
  const auto shared = static_cast<size_t>(std::floor(plan.cached_share * plan.prompt_tokens));
  const size_t fresh = static_cast<size_t>(plan.prompt_tokens) - shared;
  std::vector<std::vector<int32_t>> prefixes;
  for (int p = 0; p < plan.prefixes && shared > 0; ++p) {
    prefixes.push_back(ids(base::mix64(plan.seed * 1000003 + static_cast<uint64_t>(p)), shared, plan.vocab));
    std::vector<int32_t> warm = prefixes.back();
    warm.push_back(5);
    const LoadSample s = ask(plan, warm, 1, std::chrono::steady_clock::now());
    if (!s.error.empty()) throw std::runtime_error("warming up: " + s.error);
  }
  base::Rng gaps(base::mix64(plan.seed ^ 0x5eed));
  LoadRun run;
  run.samples.resize(static_cast<size_t>(plan.requests));
  const Time begin = std::chrono::steady_clock::now();
  double due_after = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < run.samples.size(); ++i) {
    std::vector<int32_t> prompt = prefixes.empty() ? std::vector<int32_t>() : prefixes[i % prefixes.size()];
    const auto own = ids(base::mix64(plan.seed * 7919 + i + 1), fresh, plan.vocab);
    prompt.insert(prompt.end(), own.begin(), own.end());
    if (plan.rate <= 0) {
      run.samples[i] = ask(plan, prompt, plan.output_tokens, std::chrono::steady_clock::now());
      continue;
    }
    const Time due = begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                 std::chrono::duration<double>(due_after));
    due_after += -std::log(1 - gaps.uniform()) / plan.rate;
    std::this_thread::sleep_until(due);
    threads.emplace_back([&plan, &run, i, due, prompt = std::move(prompt)] {
      run.samples[i] = ask(plan, prompt, plan.output_tokens, due);
    });
  }
  for (std::thread& t : threads) t.join();
  run.seconds = since(begin);
  return run;
}

}  // namespace kadence::apps
