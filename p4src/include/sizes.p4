/* Every size of the program in one place. The controller reads table and register sizes from P4Info;
 * the limits that Python shares are held together with p4src/__init__.py by a test. */
#ifndef SIZES_P4
#define SIZES_P4

#define CHUNK_BITS 2048          /* one chunk: 256 bytes, 64 lanes of 32 bits; p4c's widest field */
#define CHUNK_BYTES 256
#define MAX_CHUNKS 16            /* path MTU 4096 */
#define MAX_RANKS 32
#define MAX_JOBS 32
#define MAX_FLOWS 1024           /* MAX_JOBS * MAX_RANKS */
#define MAX_SLOTS 8192
#define HISTORY_MESSAGES 16      /* 2W messages remembered per flow, so W <= 8 */
#define FIRST_PSNS_BITS 768      /* MAX_RANKS * 24: read and written as one word */
#define RECORD_BITS 104          /* generation 32, message 32, PSN 24, packets 8, op 8 */
#define AWAITED_BITS 56          /* generation 32, PSN 24 */
#define ROUTE_ENTRIES 4096
#define FLOW_ENTRIES 8192        /* data and ACKs; what crosses racks needs one for each uplink */
#define MEMBER_QP_ENTRIES 4096
#define TREE_ENTRIES 1024        /* jobs that span racks, for each port between switches */
#define ECMP_ENTRIES 1024
#define MAX_PORTS 512

/* Which spine a message's partial sums go to: by its number modulo this, a power of two. */
#define BUCKETS 16
/* Multicast groups AGAIN_GROUP + 4 * port + uplink: what came again from a port goes up (replica RID_UP), and back to its
 * sender as an RNR NAK (RID_BACK). */
#define AGAIN_GROUP 64
#define RID_UP 100
#define RID_BACK 101

#endif
