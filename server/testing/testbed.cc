// A server over the scripted model: testbed noop|tools [running]. Prints its port, serves until its input ends.
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "base/error.h"
#include "server/server.h"
#include "server/testing/byte_tokenizer.h"
#include "server/testing/scripted_model.h"

int main(int argc, char** argv) {
  namespace server = kadence::server;
  try {
    const std::string what = argc > 1 ? argv[1] : "tools";
    server::ServerOptions options;
    options.port = 0;
    options.model_name = "scripted";
    options.log_file = "-";
    options.service.max_in_flight = 4096;
    server::Server s(server::testing::scripted_engine(
                         what == "tools" ? server::testing::Script(server::testing::tool_caller) : nullptr,
                         argc > 2 ? std::atoi(argv[2]) : 64),
                     std::make_unique<server::testing::ByteTokenizer>(), server::testing::kimi_chat(), options);
    std::cout << "serving scripted at http://127.0.0.1:" << s.port() << std::endl;
    std::thread waiter([&] {
      std::string line;
      while (std::getline(std::cin, line)) {
      }
      s.shutdown(std::chrono::seconds(5));
    });
    s.run();
    waiter.join();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
