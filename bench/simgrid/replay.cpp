// Runs what `pith sim allreduce --export FILE` has written in SimGrid, and prints the seconds that it takes there.
//
//     g++ -std=c++17 -O2 bench/simgrid/replay.cpp -lsimgrid -o replay && ./replay FILE
//
// An actor for each rank does what a rank of `pith sim` does: messages first, then the lowest task that can run. Messages
// from one rank to another leave in their order, as on a TCP connection. Links are SimGrid's: flows share them fairly, where
// `pith sim` sends segments in turn. A message takes its latency after its last byte has left, while the next is on its way.
#include <algorithm>
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

int rack_of(int host) { return host / static_cast<int>(setting("rack_hosts")); }

bool crosses_racks(unsigned a, unsigned b) {
  return setting("rack_hosts") > 0 && rack_of(ranks[a].host) != rack_of(ranks[b].host);
}

double latency_of(unsigned a, unsigned b) {
  return is_inside(a, b) ? setting("inside_latency")
                         : setting("latency") + (crosses_racks(a, b) ? setting("rack_latency") : 0);
}

struct Links {
  std::vector<sg4::Link *> out, in;
};

Links make_links(sg4::NetZone *zone, const std::string &name, std::size_t count, double rate) {
  Links links;
  for (std::size_t i = 0; i < count; i++) {
    links.out.push_back(zone->create_link(name + "-out-" + std::to_string(i), rate)->set_latency(0)->seal());
    links.in.push_back(zone->create_link(name + "-in-" + std::to_string(i), rate)->set_latency(0)->seal());
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
  const Links nic = make_links(zone, "nic", count, setting("rate"));
  const Links memory = make_links(zone, "memory", ranks.size(), setting("inside_rate"));
  Links rack;
  if (rack_hosts) {
    rack = make_links(zone, "rack", count / static_cast<std::size_t>(rack_hosts) + 1, setting("rack_rate"));
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
        const bool crosses = crosses_racks(a, b);
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
      if (rank_.task[t].kind == Kind::Receive) {
        receive_[{rank_.task[t].peer, rank_.task[t].tag}] = t;
        expected_[rank_.task[t].peer]++;
      }
      if (rank_.task[t].waits == 0) {
        make_ready(t);
      }
    }
    for (const auto &[peer, messages] : expected_) {
      listen(peer);
    }
    while (left_ > 0) {
      start_work();
      if (left_ > 0) {
        wait();
      }
    }
  }

private:
  enum class What { Work, Sent, Received };

  struct Pending {
    What what;
    unsigned number; // a task, or the peer that sends
  };

  struct Arrival {
    double time;
    unsigned task;
    bool operator>(const Arrival &other) const {
      return time > other.time || (time == other.time && task > other.task);
    }
  };

  static sg4::Mailbox *mailbox(unsigned from, unsigned to) {
    return sg4::Mailbox::by_name(std::to_string(from) + "-" + std::to_string(to));
  }

  void add(const sg4::ActivityPtr &activity, What what, unsigned number) {
    pending_.push_back(activity);
    of_.push_back({what, number});
  }

  // The next message of a peer.
  void listen(unsigned peer) {
    if (expected_[peer]-- > 0) {
      add(mailbox(peer, number_)->get_async<Task>(&came_[peer]), What::Received, peer);
    }
  }

  // Until something has happened, and all that happens with it.
  void wait() {
    if (pending_.empty()) {
      sg4::this_actor::sleep_until(arrivals_.top().time);
    } else {
      const double rest = arrivals_.empty() ? -1 : std::max(arrivals_.top().time - sg4::Engine::get_clock(), 0.0);
      const auto at = rest == 0 ? -1 : sg4::Activity::wait_any_for(pending_, rest);
      if (at >= 0) {
        end(static_cast<std::size_t>(at));
      }
    }
    while (!arrivals_.empty() && arrivals_.top().time <= sg4::Engine::get_clock() + 1e-12) {
      arrive(arrivals_.top().task);
      arrivals_.pop();
    }
  }

  void end(std::size_t at) {
    const Pending ended = of_[at];
    pending_[at] = pending_.back();
    pending_.pop_back();
    of_[at] = of_.back();
    of_.pop_back();
    switch (ended.what) {
    case What::Work:
      work_ = nullptr;
      end_work(ended.number);
      break;
    case What::Sent:
      end_send(ended.number);
      break;
    case What::Received: {
      const unsigned peer = ended.number;
      const unsigned task = receive_.at({peer, came_[peer]->tag});
      rank_.task[task].bytes = came_[peer]->bytes;
      arrivals_.push({sg4::Engine::get_clock() + latency_of(peer, number_), task});
      listen(peer);
      break;
    }
    }
  }

  void arrive(unsigned task) {
    rank_.task[task].arrived = true;
    if (rank_.task[task].waits == 0) {
      messages_.push_back(task);
    }
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
    return setting(inside ? "inside_message" : "message") + task.bytes * setting(inside ? "inside_byte" : "byte");
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
        add(work_, What::Work, t);
      } else {
        end_work(t);
      }
    }
  }

  void end_work(unsigned t) {
    const Task &task = rank_.task[t];
    if (task.kind != Kind::Send) {
      finish(t);
      return;
    }
    queue_[task.peer].push_back(t);
    if (queue_[task.peer].size() == 1) {
      begin_send(t);
    }
  }

  void begin_send(unsigned t) {
    Task &task = rank_.task[t];
    add(mailbox(number_, task.peer)->put_async(&task, static_cast<std::uint64_t>(task.bytes)), What::Sent, t);
  }

  void end_send(unsigned t) {
    std::deque<unsigned> &queue = queue_[rank_.task[t].peer];
    queue.pop_front();
    if (!queue.empty()) {
      begin_send(queue.front());
    }
    finish(t);
  }

  unsigned number_;
  Rank &rank_;
  std::vector<sg4::ActivityPtr> pending_;
  std::vector<Pending> of_;
  std::map<std::pair<unsigned, unsigned>, unsigned> receive_; // by peer and tag
  std::map<unsigned, int> expected_;                          // messages of a peer
  std::map<unsigned, Task *> came_;                           // of each peer, the last
  std::map<unsigned, std::deque<unsigned>> queue_;            // to each peer, the first of them under way
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::deque<unsigned> messages_;
  std::priority_queue<unsigned, std::vector<unsigned>, std::greater<>> ready_;
  sg4::ActivityPtr work_;
  std::size_t left_ = 0;
};

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
    sg4::Actor::create("rank-" + std::to_string(r), sg4::Host::by_name("rank-" + std::to_string(r)), Actor(r));
  }
  engine.run();
  std::printf("%.9g\n", sg4::Engine::get_clock());
  return 0;
}
