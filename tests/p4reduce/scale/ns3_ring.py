"""Run by test_against_ns3.py, in a process of its own: rings on ns-3's packets.

    ns3_ring.py RANKS:RATE:DELAY:PACKETS:BYTES ...

Hosts have point-to-point links of RATE bit/s and DELAY seconds to a router. Each gives the next one PACKETS
packets of BYTES on the wire, as soon as it has as many from the one before, 2 (RANKS - 1) times. It
prints for each case when the last of them has all.
"""

from __future__ import annotations

import sys

from ns import ns

HEADERS = 2 + 20 + 8  # PPP, IPv4, UDP
RING = """
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

namespace ring {
using namespace ns3;

struct Rank {
    Ptr<Socket> socket;
    InetSocketAddress next{9};
    uint32_t packets = 0, bytes = 0, steps = 0, taken = 0, arrived = 0;
    double done = 0;

    void Send() {
        for (uint32_t i = 0; i < packets; ++i) socket->SendTo(Create<Packet>(bytes), 0, next);
    }

    void Read(Ptr<Socket> from) {
        while (from->Recv()) {
            if (++arrived % packets != 0) continue;
            if (++taken < steps) Send();
            else done = Simulator::Now().GetSeconds();
        }
    }
};

double Play(uint32_t ranks, double rate, double delay, uint32_t packets, uint32_t bytes) {
    PointToPointHelper links;
    links.SetDeviceAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(rate))));
    links.SetDeviceAttribute("Mtu", UintegerValue(9000));
    links.SetChannelAttribute("Delay", TimeValue(Seconds(delay)));
    links.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("1000000p"));
    NodeContainer hosts(ranks), router(1);
    InternetStackHelper internet;
    internet.Install(hosts);
    internet.Install(router);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    std::vector<Ipv4Address> of;
    for (uint32_t i = 0; i < ranks; ++i) {
        of.push_back(addresses.Assign(links.Install(hosts.Get(i), router.Get(0))).GetAddress(0));
        addresses.NewNetwork();
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    std::vector<Rank> all(ranks);
    for (uint32_t i = 0; i < ranks; ++i) {
        Rank& rank = all[i];
        rank.packets = packets;
        rank.bytes = bytes;
        rank.steps = 2 * (ranks - 1);
        rank.next = InetSocketAddress(of[(i + 1) % ranks], 9);
        rank.socket = Socket::CreateSocket(hosts.Get(i), UdpSocketFactory::GetTypeId());
        rank.socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), 9));
        rank.socket->SetRecvCallback(MakeCallback(&Rank::Read, &rank));
        Simulator::ScheduleWithContext(hosts.Get(i)->GetId(), Seconds(0), &Rank::Send, &rank);
    }
    Simulator::Run();
    double last = 0;
    for (const Rank& rank : all) last = rank.taken == rank.steps ? std::max(last, rank.done) : INFINITY;
    Simulator::Destroy();
    return last;
}
}
"""


def main() -> None:
    ns.cppyy.cppdef(RING)
    for case in sys.argv[1:]:
        ranks, rate, delay, packets, size = map(float, case.split(":"))
        print(ns.cppyy.gbl.ring.Play(int(ranks), rate, delay, int(packets), int(size) - HEADERS))


main()
