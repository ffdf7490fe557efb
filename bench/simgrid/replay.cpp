// Runs what `pith sim allreduce --export FILE` has written in SimGrid, and prints the seconds that it takes there.
//
//     g++ -std=c++17 -O2 bench/simgrid/replay.cpp -lsimgrid -o replay && ./replay FILE
//
// An actor for each rank does what a rank of `pith sim` does: messages first, then the lowest task that can run. Links are
// SimGrid's: flows share them fairly, where `pith sim` sends segments in turn.
#include <cstdint>
#include <cstdio>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <queue>
#include <set>
#include <simgrid/s4u.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

namespace {

enum class Kind { Work, Send, Receive };

struct Task {
  Kind kind;
  double seconds = 0, bytes = 0;
  unsigned peer = 0, tag = 0, waits = 0;
  bool arrived = false;
  std::vector<unsigned> next;
};

struct Rank {
  int host = 0;
  std::vector<Task> task;
};

std::map<std::string, double> network;
std::vector<Rank> ranks;

double setting(const std::string &name) { return network.at(name); }

bool is_inside(unsigned a, unsigned b) { return ranks[a].host == ranks[b].host; }

void read_task(const std::string &line, Rank &rank) {
  std::istringstream words(line);
  std::string kind;
  Task task{};
  words >> kind;
  if (kind == "work") {
    task.kind = Kind::Work;
    words >> task.seconds;
  } else {
    task.kind = kind == "send" ? Kind::Send : Kind::Receive;
    words >> task.peer >> task.tag;
    if (task.kind == Kind::Send) {
      words >> task.bytes;
    }
  }
  for (unsigned next; words >> next;) {
    task.next.push_back(next);
  }
  rank.task.push_back(task);
}

bool read_file(const char *path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line != "pith-schedules 1") {
    return false;
  }
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name != "rank") {
      words >> network[name];
      continue;
    }
    unsigned number, tasks;
    int host;
    words >> number >> host >> tasks;
    ranks.resize(number + 1);
    ranks[number].host = host;
    for (unsigned i = 0; i < tasks && std::getline(file, line); i++) {
      read_task(line, ranks[number]);
    }
    for (const Task &task : std::vector<Task>(ranks[number].task)) {
      for (unsigned next : task.next) {
        ranks[number].task.at(next).waits++;
      }
    }
  }
  return !ranks.empty();
}

// ---- The platform ---------------------------------------------------------------------------------------------------

struct Links {
  std::vector<sg4::Link *> out, in;
};

Links make_links(sg4::NetZone *zone, const std::string &name, std::size_t count, double rate, double latency) {
  Links links;
  for (std::size_t i = 0; i < count; i++) {
    links.out.push_back(zone->create_link(name + "-out-" + std::to_string(i), rate)->set_latency(latency / 2)->seal());
    links.in.push_back(zone->create_link(name + "-in-" + std::to_string(i), rate)->set_latency(latency / 2)->seal());
  }
  return links;
}

// Routes between the pairs that exchange messages.
void make_platform() {
  auto *zone = sg4::create_full_zone("all");
  std::vector<sg4::Host *> hosts;
  for (std::size_t r = 0; r < ranks.size(); r++) {
    hosts.push_back(zone->create_host("rank-" + std::to_string(r), 1.0)->seal());
  }
  const auto rack_hosts = static_cast<int>(setting("rack_hosts"));
  const auto count = static_cast<std::size_t>(setting("hosts"));
  const Links nic = make_links(zone, "nic", count, setting("rate"), setting("latency"));
  const Links memory =
      make_links(zone, "memory", ranks.size(), setting("inside_rate"), setting("inside_latency"));
  Links rack;
  if (rack_hosts) {
    rack = make_links(zone, "rack", count / static_cast<std::size_t>(rack_hosts) + 1, setting("rack_rate"),
                      setting("rack_latency"));
  }
  sg4::Link *backbone = setting("switch_rate") > 0
                            ? zone->create_link("switch", setting("switch_rate"))->set_latency(0)->seal()
                            : nullptr;
  std::set<std::pair<unsigned, unsigned>> done;
  for (unsigned a = 0; a < ranks.size(); a++) {
    for (const Task &task : ranks[a].task) {
      const unsigned b = task.peer;
      if (task.kind != Kind::Send || !done.insert({a, b}).second) {
        continue;
      }
      std::vector<sg4::LinkInRoute> route;
      if (is_inside(a, b)) {
        route = {sg4::LinkInRoute(memory.out[a]), sg4::LinkInRoute(memory.in[b])};
      } else {
        const auto from = static_cast<std::size_t>(ranks[a].host), to = static_cast<std::size_t>(ranks[b].host);
        const auto size = static_cast<std::size_t>(rack_hosts ? rack_hosts : 1);
        const bool crosses = rack_hosts && from / size != to / size;
        route.emplace_back(nic.out[from]);
        if (crosses) {
          route.emplace_back(rack.out[from / size]);
        }
        if (backbone) {
          route.emplace_back(backbone);
        }
        if (crosses) {
          route.emplace_back(rack.in[to / size]);
        }
        route.emplace_back(nic.in[to]);
      }
      zone->add_route(hosts[a]->get_netpoint(), hosts[b]->get_netpoint(), nullptr, nullptr, route, false);
    }
  }
  zone->seal();
}

// ---- A rank -----------------------------------------------------------------------------------------------------------

class Actor {
public:
  explicit Actor(unsigned number) : number_(number), rank_(ranks[number]) {}

  void operator()() {
    left_ = rank_.task.size();
    for (unsigned t = 0; t < rank_.task.size(); t++) {
      if (rank_.task[t].kind == Kind::Receive) { // whatever waits for it: messages may come early
        add(mailbox(rank_.task[t].peer, number_, rank_.task[t].tag)->get_async<char>(&ignored_), t);
      }
      if (rank_.task[t].waits == 0) {
        make_ready(t);
      }
    }
    while (left_ > 0) {
      start_work();
      if (left_ == 0) {
        break;
      }
      const auto at = static_cast<std::size_t>(sg4::Activity::wait_any(pending_));
      const unsigned task = of_[at];
      const bool was_work = pending_[at] == work_;
      pending_[at] = pending_.back();
      pending_.pop_back();
      of_[at] = of_.back();
      of_.pop_back();
      if (was_work) {
        work_ = nullptr;
        end_work(task);
      } else if (rank_.task[task].kind == Kind::Send) {
        finish(task);
      } else {
        rank_.task[task].arrived = true;
        if (rank_.task[task].waits == 0) {
          messages_.push_back(task);
        }
      }
    }
  }

private:
  static sg4::Mailbox *mailbox(unsigned from, unsigned to, unsigned tag) {
    return sg4::Mailbox::by_name(std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(tag));
  }

  void add(const sg4::ActivityPtr &activity, unsigned task) {
    pending_.push_back(activity);
    of_.push_back(task);
  }

  void make_ready(unsigned t) {
    if (rank_.task[t].kind == Kind::Work) {
      ready_.push(t);
    } else if (rank_.task[t].kind == Kind::Send || rank_.task[t].arrived) {
      messages_.push_back(t);
    }
  }

  void finish(unsigned t) {
    left_--;
    for (unsigned next : rank_.task[t].next) {
      if (--rank_.task[next].waits == 0) {
        make_ready(next);
      }
    }
  }

  double seconds_of(unsigned t) const {
    const Task &task = rank_.task[t];
    if (task.kind == Kind::Work) {
      return task.seconds;
    }
    const bool inside = is_inside(number_, task.peer);
    return setting(inside ? "inside_message" : "message") +
           bytes_of(t) * setting(inside ? "inside_byte" : "byte");
  }

  // Those of a receive are those of its send.
  double bytes_of(unsigned t) const {
    const Task &task = rank_.task[t];
    return task.kind == Kind::Send ? task.bytes : sizes.at({task.peer, number_, task.tag});
  }

  // One thing at a time; what takes no time is done at once.
  void start_work() {
    while (!work_ && (!messages_.empty() || !ready_.empty())) {
      unsigned t;
      if (!messages_.empty()) {
        t = messages_.front();
        messages_.pop_front();
      } else {
        t = ready_.top();
        ready_.pop();
      }
      const double seconds = seconds_of(t);
      if (seconds > 0) {
        work_ = sg4::this_actor::exec_async(seconds);
        add(work_, t);
      } else {
        end_work(t);
      }
    }
  }

  void end_work(unsigned t) {
    const Task &task = rank_.task[t];
    if (task.kind == Kind::Send) {
      add(mailbox(number_, task.peer, task.tag)->put_async(&byte_, static_cast<std::uint64_t>(task.bytes)), t);
    } else {
      finish(t);
    }
  }

public:
  static std::map<std::tuple<unsigned, unsigned, unsigned>, double> sizes;

private:
  unsigned number_;
  Rank &rank_;
  std::vector<sg4::ActivityPtr> pending_;
  std::vector<unsigned> of_;
  std::deque<unsigned> messages_;
  std::priority_queue<unsigned, std::vector<unsigned>, std::greater<>> ready_;
  sg4::ActivityPtr work_;
  std::size_t left_ = 0;
  char byte_ = 0;
  char *ignored_ = nullptr;
};

std::map<std::tuple<unsigned, unsigned, unsigned>, double> Actor::sizes;

} // namespace

int main(int argc, char **argv) {
  sg4::Engine engine(&argc, argv);
  if (argc != 2 || !read_file(argv[1])) {
    std::cerr << "usage: replay FILE, as pith sim allreduce --export writes it\n";
    return 2;
  }
  for (const char *setting : {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0",
                              "network/weight-S:0", "contexts/stack-size:128"}) {
    sg4::Engine::set_config(setting);
  }
  make_platform();
  for (unsigned r = 0; r < ranks.size(); r++) {
    for (const Task &task : ranks[r].task) {
      if (task.kind == Kind::Send) {
        Actor::sizes[{r, task.peer, task.tag}] = task.bytes;
      }
    }
  }
  for (unsigned r = 0; r < ranks.size(); r++) {
    sg4::Actor::create("rank-" + std::to_string(r), sg4::Host::by_name("rank-" + std::to_string(r)), Actor(r));
  }
  engine.run();
  std::printf("%.9g\n", sg4::Engine::get_clock());
  return 0;
}
