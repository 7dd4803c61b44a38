// Generated from ../tables.rs by its test: do not edit. Constants and structs that host and kernels share.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define MAX_ORDER 8
#define STRIP 8
#define SUMS 6
#define CERTIFY_ROUNDS 3
#define POSTED 64
#define CARRIED 64
#define STAMPED 64
#define NONE 2147483647
#define RECORD_WORDS 76
#define GAUGE_EPSILON 0
#define GAUGE_NOISE_FLOOR 7
#define GAUGE_EIGENVALUE_MIN 8
#define GAUGE_EIGENVALUE_MAX 9
#define GAUGE_KAPPA 10
#define GAUGE_GAP_BOUND 5
#define GAUGE_ORTHOGONALITY 11
#define COUNTER_QR_STEPS 31
#define INFO_IDLE 1
#define INFO_NOT_FINITE 2
#define INFO_LEFT_OUT 4
#define INFO_FELL_BACK 8
#define RUNG_CHOSEN 0
#define RUNG_DOUBLE 1
#define RUNG_STALE 3
#define RUNG_SHORT 4
#define RUNG_NONE 5
#define RULE_NONE 0
#define RULE_EXCEEDED 1
#define RULE_AVERAGE 2
#define RULE_SPECTRAL 3
#define RULE_SANDWICH 4
#define LARGEST_ROOT 8
#define JUDGE_FIRST 1
#define JUDGE_LOOK 2
#define JUDGE_TELL 4
#define F32 0
#define F64 1
#define F16 2
#define BF16 3
#define TASK_HAS_BASIS 1
#define TASK_ADOPT_DIAGONAL 2
#define TASK_AFTER_REFRESH 4
#define TASK_SEARCH 8
#define TASK_SPOIL 16
#define TASK_FAIL 32
#define TASK_KEEP_DIAGONAL 64
#define TASK_SHIFT 128
#define TASK_GIVEN_EPSILON 256
#define TASK_NOISE 512
#define TASK_RELATIVE 1024
#define TASK_PLAIN 2048
#define TASK_POLISH 4096
#define TASK_QR 8192
#define LEAST_WEIGHT 0.0625
#define SEARCH_RATIO 1.01
#define LARGEST_AIM 1.0
#define ROUNDING_F32 1.1920928955078125e-7
#define ROUNDING_F64 2.220446049250313e-16
#define KAPPA_FLOOR 1e-6
#define TINY_RMS 1e-30

struct Clock {
    u64 step;
    double weight;
};

struct Rules {
    double beta1;
    double beta2;
    double log_beta1;
    double log_beta2;
    double moment_keep;
    double moment_take;
    double log_moment;
    double moment_epsilon;
    double momentum;
    double momentum_take;
    double scale;
    double grad_scale;
    double largest;
    double tiny_norm;
    int grafts;
    int normalized;
    int nadam;
    int nesterov;
    int decoupled;
    int filter_correction;
    int statistic_correction;
    int moment_correction;
    int moment_relative;
    int statistics_period;
};

struct Site {
    u64 param;
    u64 grad;
    double lr_scale;
    double decay;
    int grad_dtype;
    int active;
};

struct Order {
    double gain_root;
    double decay;
    double filter;
    double moment;
    double normalize;
    double moment_epsilon;
    double length;
    int active;
    int turn;
};

struct Gate {
    int bad;
    int open;
    int closed;
    int param;
    u64 calls;
    u64 refused;
    u64 call;
    u64 left_out;
};

struct Stack {
    int count;
    int order;
    int chunks;
    int factors;
    u32 elements;
    u32 chunk;
    int param_dtype;
    int contiguous;
    int update_dtype;
    int wide;
    u32 dims[MAX_ORDER];
    u64 strides[MAX_ORDER];
    u64 statistics[MAX_ORDER];
    u64 roots[MAX_ORDER];
    u64 eigenroots[MAX_ORDER];
    Site *sites;
    const int *params;
    Clock *clocks;
    Order *orders;
    double *partials;
    double *squares;
    int *info;
    void *filter;
    void *moment;
    void *momentum;
    void *work;
    void *update;
};

struct Task {
    u64 statistic;
    u64 basis;
    u64 spectrum;
    u64 inverse_root;
    u64 fresh;
    u64 diagonal;
    const Clock *clock;
    const double *record;
    double exponent;
    double epsilon;
    double ratio;
    double most;
    double most_ratio;
    double target;
    double kept;
    double log_beta2;
    u64 report;
    u64 choice;
    u64 filter;
    u64 moment;
    int flags;
    int correct;
    double orthogonality;
    u64 renewal;
    u64 found;
    u64 due;
    int steps;
    int reserved;
};

struct Drift {
    double relative_change;
    double alpha;
    double residual;
    double epsilon;
    double proxy;
    double least;
    double largest;
    double bound;
    int rule;
    int decided;
    double kappa;
    double orthogonality;
    double charge;
    double loss;
    double proven;
    double proven_bound;
};

struct Renewal {
    double least;
    double most;
    double noise;
    int rung;
    int fresh;
    double kappa;
    double bound;
    double orthogonality;
    int steps;
    int reserved;
};

struct Choice {
    u32 *record;
    const Renewal *renewal;
    int *info;
    u32 success[RECORD_WORDS];
    u32 failure[RECORD_WORDS];
};

struct Scale {
    double unit;
    double size;
    int finite;
    int sound;
    double shift;
};

struct Certificate {
    double squares;
    double on;
    double average;
    double first;
    double second;
    double proxy;
    double target;
    double radius;
    double diagonal;
    int open;
    int reserved;
};

struct Search {
    double low;
    double best;
    double at;
    double epsilon;
    double proxy;
    int tried;
    int more;
};

struct Carried {
    u64 from[CARRIED];
    u64 to[CARRIED];
    u64 from_step[CARRIED];
    u64 to_step[CARRIED];
    u64 row[CARRIED];
    u64 rows[CARRIED];
    u64 width[CARRIED];
};

struct Stamped {
    u64 at[STAMPED];
    u64 value[STAMPED];
};
