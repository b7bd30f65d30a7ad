// `kadence bench ops`: operator timings.
#include "apps/cli.h"

namespace kadence::apps {

void add_bench(CLI::App& app, Action* action) { (void)app, (void)action; }

}  // namespace kadence::apps
