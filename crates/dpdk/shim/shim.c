// SPDX-License-Identifier: Apache-2.0
// What crates/dpdk calls: DPDK's static inline functions as functions, and its steps in one call
// where that saves the Rust side a struct. src/linked/ffi.rs has the same declarations.
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>

// Frames of one call of bf_receive() and bf_send() at the most.
#define BURST 64
// What a frame may have beyond its MTU: Ethernet header and two VLAN tags.
#define LINK_HEADER (14 + 2 * 4)

struct bf_frame {
	void *mbuf;
	const uint8_t *data;  // of the first segment
	uint32_t length;      // of that
	uint32_t whole;       // of all segments
};

struct bf_counters {
	uint64_t received;
	uint64_t sent;
	uint64_t missed;     // no room in a receive queue
	uint64_t errors;     // frames that the device refused
	uint64_t no_buffer;  // no buffer was left to receive into
	uint64_t unsent;
};

struct bf_device {
	uint16_t queues_least; // receive and send queues that are used alike
	uint16_t queues_most;
	uint8_t mac[6];
	uint8_t sums;          // TCP and UDP behind any headers
	uint16_t mtu;
	char driver[64];
	char name[RTE_ETH_NAME_MAX_LEN];
};

typedef void bf_log(const char *text, size_t length);

static bf_log *logger;

static ssize_t write_log(void *cookie, const char *text, size_t length)
{
	(void)cookie;
	logger(text, length);
	return length;
}

// Where stdout leads meanwhile: a usage that nobody asked for is printed there.
static int hide_stdout(void)
{
	int saved, null;

	fflush(stdout);
	saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (null >= 0) {
		dup2(null, STDOUT_FILENO);
		close(null);
	}
	return saved;
}

static void show_stdout(int saved)
{
	fflush(stdout);
	if (saved >= 0) {
		dup2(saved, STDOUT_FILENO);
		close(saved);
	}
}

// Bonds get their members, their address and what they can do when they are configured first.
static int join_members(void)
{
	struct rte_eth_conf config = {0};
	struct rte_eth_dev_info info;
	int error;
	uint16_t port;

	RTE_ETH_FOREACH_DEV(port) {
		if (rte_eth_dev_info_get(port, &info) || strcmp(info.driver_name, "net_bonding"))
			continue;
		error = rte_eth_dev_configure(port, 1, 1, &config);
		if (error)
			return -error;
	}
	return 0;
}

// Starts DPDK, on a thread that is for this alone: it is pinned. Zero, or a number of rte_errno.
int bf_start(int argc, char **argv, bf_log *to)
{
	cookie_io_functions_t functions = {.write = write_log};
	sigset_t all, before;
	FILE *file;
	int saved, done;

	logger = to;
	file = fopencookie(NULL, "w", functions);
	if (file)
		rte_openlog_stream(file);
	// Threads of DPDK's take no signal of ours.
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	saved = hide_stdout();
	done = rte_eal_init(argc, argv);
	show_stdout(saved);
	if (done < 0)
		done = rte_errno ? rte_errno : EINVAL;
	else
		done = join_members();
	// What the kernel says of devices that are taken out. Some drivers say it themselves.
	if (!done)
		rte_dev_event_monitor_start();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return done;
}

// The first port from `port` on that is nobody's part, a bond's neither. Less than zero: there is
// none.
int bf_next_port(uint16_t port)
{
	struct rte_eth_dev_info info;
	uint64_t next = port;

	for (;; next++) {
		next = rte_eth_find_next_owned_by(next, RTE_ETH_DEV_NO_OWNER);
		if (next >= RTE_MAX_ETHPORTS)
			return -1;
		if (rte_eth_dev_info_get(next, &info) ||
		    !(*info.dev_flags & RTE_ETH_DEV_BONDED_SLAVE))
			return (int)next;
	}
}

// Drivers whose devices have the queues that they were made with, and get frames on all of them,
// by a hash of the kernel's or of the other side's: one that is not emptied loses its share.
static bool fills_all_queues(const char *driver)
{
	static const char *const drivers[] = {
		"net_af_packet", "net_af_xdp", "net_pcap", "net_virtio_user",
	};
	unsigned int i;

	for (i = 0; i < RTE_DIM(drivers); i++)
		if (!strcmp(driver, drivers[i]))
			return true;
	return false;
}

// What a device offers to sum, if it does from where it is told to: by what is said of the headers
// in front, however many there are. One that looks for headers itself sums behind the outermost.
static uint64_t sums(const struct rte_eth_dev_info *info)
{
	static const char *const drivers[] = {"net_tap", "net_virtio", "net_virtio_user"};
	const uint64_t both = RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
	unsigned int i;

	if ((info->tx_offload_capa & both) != both)
		return 0;
	for (i = 0; i < RTE_DIM(drivers); i++)
		if (!strcmp(info->driver_name, drivers[i]))
			return info->tx_offload_capa & (both | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM);
	return 0;
}

int bf_describe(uint16_t port, struct bf_device *device)
{
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	int error = rte_eth_dev_info_get(port, &info);

	if (!error)
		error = rte_eth_macaddr_get(port, &mac);
	if (!error)
		error = rte_eth_dev_get_mtu(port, &device->mtu);
	if (!error)
		error = rte_eth_dev_get_name_by_port(port, device->name);
	if (error)
		return -error;
	// A ring has none.
	if (rte_is_zero_ether_addr(&mac)) {
		rte_eth_random_addr(mac.addr_bytes);
		rte_eth_dev_default_mac_addr_set(port, &mac);
	}
	memcpy(device->mac, mac.addr_bytes, sizeof(device->mac));
	snprintf(device->driver, sizeof(device->driver), "%s", info.driver_name);
	device->queues_most = RTE_MIN(info.max_rx_queues, info.max_tx_queues);
	device->sums = sums(&info) != 0;
	device->queues_least = fills_all_queues(info.driver_name) ? device->queues_most : 1;
	return 0;
}

static volatile uint8_t removed[RTE_MAX_ETHPORTS];

// The driver says so.
static int note_removed(uint16_t port, enum rte_eth_event_type event, void *argument, void *result)
{
	(void)event, (void)argument, (void)result;
	removed[port] = 1;
	return 0;
}

// The kernel does.
static void note_taken_out(const char *name, enum rte_dev_event_type event, void *port)
{
	(void)name;
	if (event == RTE_DEV_EVENT_REMOVE)
		removed[(uintptr_t)port] = 1;
}

// Has both told to us.
static void watch(uint16_t port, const struct rte_eth_dev_info *info)
{
	rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_RMV, note_removed, NULL);
	rte_dev_event_callback_register(rte_dev_name(info->device), note_taken_out,
					(void *)(uintptr_t)port);
}

// A pool of `count` buffers for frames of this MTU. There it stays.
void *bf_pool(uint16_t port, uint32_t count, uint32_t mtu)
{
	uint32_t room = RTE_MAX(mtu + LINK_HEADER, (uint32_t)RTE_MBUF_DEFAULT_DATAROOM);
	static int number;
	char name[RTE_MEMPOOL_NAMESIZE];

	snprintf(name, sizeof(name), "butterfly-%u-%d", port, number++);
	return rte_pktmbuf_pool_create(name, count, 64, 0,
				       RTE_ALIGN(room + RTE_PKTMBUF_HEADROOM, 64),
				       rte_eth_dev_socket_id(port));
}

// Sets a port up with so many queues in each direction, which get their buffers from `pools`, and
// starts it. Zero, or an error number and what was being done.
int bf_open(uint16_t port, uint16_t queues, uint16_t frames, uint32_t mtu, void **pools,
	    const char **step)
{
	struct rte_eth_conf config = {0};
	uint16_t receive = frames, send = frames, now;
	struct rte_eth_dev_info info;
	int error, queue;

	*step = "asking what it can do";
	error = rte_eth_dev_info_get(port, &info);
	if (error)
		return -error;
	// What VXLAN differs by is the UDP source port. A device without a hash has frames come by
	// its first queue, and sends by all.
	config.rx_adv_conf.rss_conf.rss_hf =
		info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP);
	if (queues > 1 && config.rx_adv_conf.rss_conf.rss_hf)
		config.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
	else
		config.rx_adv_conf.rss_conf.rss_hf = 0;
	config.txmode.offloads = sums(&info);
	config.intr_conf.rmv = !!(*info.dev_flags & RTE_ETH_DEV_INTR_RMV);
	*step = "asking for its MTU";
	error = rte_eth_dev_get_mtu(port, &now);
	if (error)
		return -error;
	config.rxmode.mtu = now;
	*step = "configuring its queues";
	error = rte_eth_dev_configure(port, queues, queues, &config);
	if (error)
		return -error;
	if (mtu != now) {
		*step = "setting its MTU";
		error = rte_eth_dev_set_mtu(port, mtu);
		if (error)
			return -error;
	}
	rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive, &send);
	for (queue = 0; queue < queues; queue++) {
		*step = "setting up a receive queue";
		error = rte_eth_rx_queue_setup(port, queue, receive, rte_eth_dev_socket_id(port),
					       NULL, pools[queue]);
		if (error)
			return -error;
		*step = "setting up a send queue";
		error = rte_eth_tx_queue_setup(port, queue, send, rte_eth_dev_socket_id(port),
					       NULL);
		if (error)
			return -error;
	}
	watch(port, &info);
	*step = "starting it";
	error = rte_eth_dev_start(port);
	// Groups that the kernel hears are not told to the device. Not all have a filter of them.
	if (!error)
		rte_eth_allmulticast_enable(port);
	return -error;
}

void bf_stop(uint16_t port)
{
	rte_eth_dev_stop(port);
}

struct closing {
	uint16_t port;
	bool again;
	sem_t done;
};

// An alarm of DPDK's. At the second call all alarms are over that the driver had set by the first.
static void close_port(void *argument)
{
	struct closing *closing = argument;

	if (!closing->again) {
		closing->again = true;
		if (!rte_eal_alarm_set(1, close_port, closing))
			return;
	}
	rte_eth_dev_close(closing->port);
	sem_post(&closing->done);
}

// Closes a port that is stopped. Drivers hear of their links on DPDK's interrupt thread, and
// net_virtio_user takes a lost connection down there by an alarm, which reads what a close has
// freed. So the port is closed on that thread, where nothing of the driver's runs meanwhile.
void bf_close(uint16_t port)
{
	struct closing closing = {.port = port};
	struct rte_eth_dev_info info;

	rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_RMV, note_removed, NULL);
	if (!rte_eth_dev_info_get(port, &info))
		rte_dev_event_callback_unregister(rte_dev_name(info.device), note_taken_out,
						  (void *)(uintptr_t)port);
	sem_init(&closing.done, 0, 0);
	if (rte_eal_alarm_set(1, close_port, &closing))
		rte_eth_dev_close(port);
	else
		while (sem_wait(&closing.done) && errno == EINTR)
			;
	sem_destroy(&closing.done);
}

int bf_is_removed(uint16_t port)
{
	return removed[port] || rte_eth_dev_is_removed(port);
}

// Megabits a second, 0 if that is not known; less than zero: it is down.
int64_t bf_link(uint16_t port)
{
	struct rte_eth_link link = {0};

	if (rte_eth_link_get_nowait(port, &link) || !link.link_status)
		return -1;
	return link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
}

int bf_count(uint16_t port, struct bf_counters *counters)
{
	struct rte_eth_stats stats;
	int error = rte_eth_stats_get(port, &stats);

	if (error)
		return -error;
	counters->received = stats.ipackets;
	counters->sent = stats.opackets;
	counters->missed = stats.imissed;
	counters->errors = stats.ierrors;
	counters->no_buffer = stats.rx_nombuf;
	counters->unsent = stats.oerrors;
	return 0;
}

// The calling thread gets a number of DPDK's and with that a cache of each pool. Less than zero:
// there is none left, and it does without.
int bf_enter_thread(void)
{
	return rte_thread_register();
}

void bf_leave_thread(void)
{
	rte_thread_unregister();
}

uint16_t bf_receive(uint16_t port, uint16_t queue, struct bf_frame *frames, uint16_t most)
{
	struct rte_mbuf *mbufs[BURST];
	uint16_t count = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(most, BURST)), i;

	for (i = 0; i < count; i++) {
		frames[i].mbuf = mbufs[i];
		frames[i].data = rte_pktmbuf_mtod(mbufs[i], const uint8_t *);
		frames[i].length = rte_pktmbuf_data_len(mbufs[i]);
		frames[i].whole = rte_pktmbuf_pkt_len(mbufs[i]);
		rte_prefetch0(frames[i].data);
	}
	return count;
}

// Copies a frame of several segments: as many bytes as were there.
uint32_t bf_copy(const void *mbuf, uint8_t *out, uint32_t room)
{
	const struct rte_mbuf *segment;
	uint32_t done = 0;

	for (segment = mbuf; segment; segment = segment->next) {
		uint32_t length = RTE_MIN((uint32_t)segment->data_len, room - done);

		memcpy(out + done, rte_pktmbuf_mtod(segment, const uint8_t *), length);
		done += length;
	}
	return done;
}

void bf_free(void *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

// A buffer to write a frame into, and where; NULL: none is left.
void *bf_buffer(void *pool, uint8_t **data, uint32_t *room)
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);

	if (!mbuf)
		return NULL;
	*data = rte_pktmbuf_mtod(mbuf, uint8_t *);
	*room = rte_pktmbuf_tailroom(mbuf);
	return mbuf;
}

// What was written into a buffer has this length.
void bf_fill(void *mbuf, uint32_t length)
{
	struct rte_mbuf *filled = mbuf;

	filled->data_len = length;
	filled->pkt_len = length;
}

// The checksum of what was written is the device's to make: so many bytes are in front of the IP
// header, and so long are that and the one behind it.
void bf_leave_sum(void *mbuf, uint16_t front, uint16_t ip, uint16_t l4, int is_ipv4, int is_tcp)
{
	struct rte_mbuf *filled = mbuf;

	filled->l2_len = front;
	filled->l3_len = ip;
	filled->l4_len = l4;
	filled->ol_flags |= is_ipv4 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6;
	filled->ol_flags |= is_tcp ? RTE_MBUF_F_TX_TCP_CKSUM : RTE_MBUF_F_TX_UDP_CKSUM;
}

// Hands filled buffers to the device: how many it has taken, from the first on.
uint16_t bf_send(uint16_t port, uint16_t queue, void **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, (struct rte_mbuf **)mbufs, count);
}
