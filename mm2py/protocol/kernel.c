/* The loops of mm2py.protocol that run once per batch or per record, for CPython 3.11 and newer.
 *
 * Every function has a pure-Python twin with the same results (mm2py.protocol.kernel names them);
 * tests compare both. Input comes from the network: every length is checked before it is used, a
 * damaged one raises ValueError. The GIL is held throughout: calls take microseconds, of columns milliseconds.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(PORTABLE_CRC) /* a test compiles the tables alone */
#elif defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define HARDWARE_CRC __attribute__((target("sse4.2")))
#define CRC_8(crc, value) ((uint32_t)_mm_crc32_u64((crc), (value)))
#define CRC_1(crc, value) _mm_crc32_u8((crc), (value))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define HARDWARE_CRC
#define CRC_8(crc, value) __crc32cd((crc), (value))
#define CRC_1(crc, value) __crc32cb((crc), (value))
#endif

/* Changes whenever a function's arguments or results do; kernel.py refuses another one. */
#define INTERFACE 6

#define HEADER_BYTES 61
#define CRC_OFFSET 17
#define ATTRIBUTES_OFFSET 21
#define CODEC_MASK 0x07
#define LOG_APPEND_FLAG 0x08
#define TRANSACTIONAL_FLAG 0x10
#define CONTROL_FLAG 0x20
#define MIN_RECORD_BYTES 4 /* attributes, two deltas, key length; without its own length */
#define RECORD_GROWTH 18   /* most that new deltas and a new length can add to one record */
#define JOIN_SLACK 32      /* a part of a joined batch's size is left for deltas that become longer */
#define TINY_BYTES 2048    /* batches below it are gathered where GATHER_LEAST or more follow each other, */
#define GATHERED_BYTES (128 * 1024) /* up to this size; batch_stage has the same three numbers */
#define GATHER_LEAST 4
#define GATHER_MOST (GATHERED_BYTES / HEADER_BYTES)

/* --- numbers in network order ----------------------------------------------------------------- */

static inline uint64_t get_unsigned(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static inline int64_t get_i64(const uint8_t *at) { return (int64_t)get_unsigned(at, 8); }
static inline int32_t get_i32(const uint8_t *at) { return (int32_t)get_unsigned(at, 4); }
static inline int16_t get_i16(const uint8_t *at) { return (int16_t)get_unsigned(at, 2); }

static inline void put_unsigned(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        at[i] = (uint8_t)value;
}

/* --- CRC-32C ---------------------------------------------------------------------------------- */

#define POLYNOMIAL 0x82F63B78u

static uint32_t tables[8][256]; /* slicing by eight */

static uint32_t crc_tables(uint32_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 8; at += 8, size -= 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = tables[7][crc & 0xFF] ^ tables[6][crc >> 8 & 0xFF] ^ tables[5][crc >> 16 & 0xFF] ^
              tables[4][crc >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^
              tables[0][at[7]];
    }
    while (size--)
        crc = crc >> 8 ^ tables[0][(crc ^ *at++) & 0xFF];
    return crc;
}

#ifdef HARDWARE_CRC
/* The instruction has a latency of three cycles and a throughput of one: three streams side by side,
 * joined by advancing a CRC over as many zeros as the next stream is long. */
#define LANES 3
static const size_t lane_bytes[LANES] = {4096, 1024, 256};
static uint32_t advance_tables[LANES][4][256];

static inline uint32_t advance(uint32_t table[4][256], uint32_t crc)
{
    return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^ table[2][crc >> 16 & 0xFF] ^
           table[3][crc >> 24];
}

static inline uint64_t word(const uint8_t *at)
{
    uint64_t value; /* both CPUs are little-endian, as the instruction wants it */
    memcpy(&value, at, 8);
    return value;
}

HARDWARE_CRC static uint32_t crc_hardware(uint32_t crc, const uint8_t *at, size_t size)
{
    for (int lane = 0; lane < LANES; lane++) {
        const size_t bytes = lane_bytes[lane];
        for (; size >= 3 * bytes; at += 2 * bytes, size -= 3 * bytes) {
            uint32_t second = 0, third = 0;
            const uint8_t *stop = at + bytes;
            for (; at < stop; at += 8) {
                crc = CRC_8(crc, word(at));
                second = CRC_8(second, word(at + bytes));
                third = CRC_8(third, word(at + 2 * bytes));
            }
            crc = advance(advance_tables[lane], crc) ^ second;
            crc = advance(advance_tables[lane], crc) ^ third;
        }
    }
    for (; size >= 8; at += 8, size -= 8)
        crc = CRC_8(crc, word(at));
    for (; size; at++, size--)
        crc = CRC_1(crc, *at);
    return crc;
}
#endif

static uint32_t (*crc_update)(uint32_t, const uint8_t *, size_t) = crc_tables;

static inline uint32_t crc_of(const uint8_t *at, size_t size) { return ~crc_update(~0u, at, size); }

static void prepare_crc(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        tables[0][byte] = crc;
    }
    for (int byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++) {
            const uint32_t before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][before & 0xFF];
        }
#ifdef HARDWARE_CRC
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2"))
        return;
#endif
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t basis[32]; /* what each single bit becomes; the map is linear */
        for (int bit = 0; bit < 32; bit++) {
            basis[bit] = 1u << bit;
            for (size_t byte = 0; byte < lane_bytes[lane]; byte++)
                basis[bit] = basis[bit] >> 8 ^ tables[0][basis[bit] & 0xFF];
        }
        for (int table = 0; table < 4; table++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t crc = 0;
                for (int bit = 0; bit < 8; bit++)
                    if (byte >> bit & 1)
                        crc ^= basis[8 * table + bit];
                advance_tables[lane][table][byte] = crc;
            }
    }
    crc_update = crc_hardware;
#endif
}

/* --- records ---------------------------------------------------------------------------------- */

typedef struct {
    int64_t timestamp_delta;
    int64_t offset_delta;
    const uint8_t *body; /* the key length, behind the offset delta */
    const uint8_t *end;
} Record;

/* Reads a zigzag varint of at most 64 bits; NULL where the data ends or it is longer. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, int64_t *result)
{
    uint64_t value = 0;
    for (unsigned shift = 0; at < end; shift += 7) {
        const uint8_t byte = *at++;
        if (shift == 63 && byte > 1)
            return NULL;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *result = (int64_t)(value >> 1 ^ (0 - (value & 1)));
            return at;
        }
    }
    return NULL;
}

static inline uint64_t zigzag(int64_t value)
{
    return (uint64_t)value << 1 ^ (value < 0 ? ~(uint64_t)0 : 0);
}

static inline int varint_bytes(uint64_t value)
{
    int bytes = 1;
    while (value >>= 7)
        bytes++;
    return bytes;
}

static inline uint8_t *write_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static int damaged(const char *what)
{
    PyErr_SetString(PyExc_ValueError, what);
    return -1;
}

static int damaged_at(const char *format, int64_t one, int64_t other)
{
    PyErr_Format(PyExc_ValueError, format, (long long)one, (long long)other);
    return -1;
}

/* Moves *at behind the next record; offset deltas must rise. */
static inline int next_record(const uint8_t **at, const uint8_t *end, int64_t previous, Record *out)
{
    int64_t size;
    const uint8_t *here = read_varint(*at, end, &size);
    if (!here)
        return damaged("the last record is cut off");
    if (size < MIN_RECORD_BYTES || size > end - here)
        return damaged_at("a record announces %lld bytes", size, 0);
    out->end = here + size;
    here = read_varint(here + 1, out->end, &out->timestamp_delta);
    if (here)
        here = read_varint(here, out->end, &out->offset_delta);
    if (!here)
        return damaged("the deltas of a record are longer than the record");
    if (out->offset_delta <= previous)
        return damaged_at("offset delta %lld follows %lld", out->offset_delta, previous);
    out->body = here;
    *at = out->end;
    return 0;
}

static inline int ends_here(const uint8_t *at, const uint8_t *end)
{
    return at == end ? 0 : damaged_at("%lld bytes follow the last record", end - at, 0);
}

static inline uint8_t *write_record(uint8_t *at, const Record *record, int64_t stamp, int64_t delta)
{
    const uint64_t stamp_bits = zigzag(stamp), delta_bits = zigzag(delta);
    const size_t body = (size_t)(record->end - record->body);
    const size_t size = 1 + (size_t)varint_bytes(stamp_bits) + (size_t)varint_bytes(delta_bits) + body;
    at = write_varint(at, (uint64_t)size << 1);
    *at++ = 0; /* record attributes are unused */
    at = write_varint(at, stamp_bits);
    at = write_varint(at, delta_bits);
    memcpy(at, record->body, body);
    return at + body;
}

static int check_count(int64_t count, Py_ssize_t size)
{
    /* Also keeps a lie in the header from reserving memory. */
    if (count < 0 || count > size / (MIN_RECORD_BYTES + 1))
        return damaged("the payload is too short for its records");
    return 0;
}

/* --- runs of consecutive offsets -------------------------------------------------------------- */

typedef struct {
    PyObject *list;
    int64_t first;
    int64_t count; /* 0: no run is open */
} Runs;

static PyObject *pair(int64_t first, int64_t count)
{
    PyObject *low = PyLong_FromLongLong(first), *high = PyLong_FromLongLong(count), *made = NULL;
    if (low && high)
        made = PyTuple_Pack(2, low, high);
    Py_XDECREF(low);
    Py_XDECREF(high);
    return made;
}

static int close_run(Runs *runs)
{
    if (!runs->count)
        return 0;
    PyObject *run = pair(runs->first, runs->count);
    const int failed = !run || PyList_Append(runs->list, run) < 0;
    Py_XDECREF(run);
    return failed ? -1 : 0;
}

static inline int add_run(Runs *runs, int64_t first, int64_t count)
{
    if (runs->count && runs->first <= INT64_MAX - runs->count &&
        runs->first + runs->count == first && runs->count <= INT64_MAX - count) {
        runs->count += count;
        return 0;
    }
    if (close_run(runs) < 0)
        return -1;
    runs->first = first;
    runs->count = count;
    return 0;
}

static PyObject *finish_runs(Runs *runs)
{
    return close_run(runs) < 0 ? NULL : PyList_AsTuple(runs->list);
}

/* --- arguments -------------------------------------------------------------------------------- */

static int expect(const char *name, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return -1;
}

static int read_i64(PyObject *object, int64_t *result)
{
    *result = PyLong_AsLongLong(object);
    return *result == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_size(PyObject *object, Py_ssize_t *result)
{
    *result = PyLong_AsSsize_t(object);
    if (*result == -1 && PyErr_Occurred())
        return -1;
    if (*result >= 0 && *result <= PY_SSIZE_T_MAX / 4)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a size or position is negative or too large");
    return -1;
}

/* --- functions -------------------------------------------------------------------------------- */

PyDoc_STRVAR(crc32c_doc, "crc32c(data, /)\n--\n\nReturn the CRC-32C of contiguous bytes.");

static PyObject *kernel_crc32c(PyObject *Py_UNUSED(module), PyObject *data)
{
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint32_t crc = crc_of(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

PyDoc_STRVAR(sign_doc,
             "sign(data, *, producer_id, producer_epoch, base_sequence, transactional=False)\n--\n\n"
             "Make a verified batch ours, in place: producer fields, clean attributes, new CRC.");

static PyObject *kernel_sign(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs,
                             PyObject *names)
{
    static const char *const known[] = {"producer_id", "producer_epoch", "base_sequence",
                                        "transactional"};
    PyObject *values[4] = {NULL, NULL, NULL, NULL};
    if (expect("sign", nargs, 1) < 0)
        return NULL;
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        int k = 0;
        while (k < 4 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), known[k]))
            k++;
        if (k == 4)
            return PyErr_Format(PyExc_TypeError, "sign does not take %R", PyTuple_GET_ITEM(names, i));
        values[k] = args[nargs + i];
    }
    int64_t numbers[3] = {0, 0, 0};
    for (int k = 0; k < 3; k++) {
        if (!values[k])
            return PyErr_Format(PyExc_TypeError, "sign needs %s", known[k]);
        if (read_i64(values[k], &numbers[k]) < 0)
            return NULL;
    }
    const int transactional = values[3] ? PyObject_IsTrue(values[3]) : 0;
    if (transactional < 0)
        return NULL;
    if (transactional && numbers[0] < 0) {
        PyErr_SetString(PyExc_ValueError, "a transactional batch needs a producer id");
        return NULL;
    }
    if (numbers[1] != (int16_t)numbers[1] || numbers[2] != (int32_t)numbers[2]) {
        PyErr_SetString(PyExc_ValueError, "a producer epoch or sequence is out of range");
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE) < 0)
        return NULL;
    if (view.len < HEADER_BYTES || view.len - 12 > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no batch", view.len);
        PyBuffer_Release(&view);
        return NULL;
    }
    uint8_t *data = view.buf;
    put_unsigned(data, 0, 8);
    put_unsigned(data + 8, (uint64_t)(view.len - 12), 4);
    put_unsigned(data + 12, UINT32_MAX, 4);
    data[21] = 0;
    data[22] = (uint8_t)((data[22] & CODEC_MASK) | (transactional ? TRANSACTIONAL_FLAG : 0));
    put_unsigned(data + 43, (uint64_t)numbers[0], 8);
    put_unsigned(data + 51, (uint64_t)numbers[1], 2);
    put_unsigned(data + 53, (uint64_t)numbers[2], 4);
    put_unsigned(data + CRC_OFFSET,
                 crc_of(data + ATTRIBUTES_OFFSET, (size_t)view.len - ATTRIBUTES_OFFSET), 4);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(borders_doc, "borders(payload, count, /)\n--\n\n"
                          "Return where each record begins, and where the last one ends.");

static PyObject *kernel_borders(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    Record record;
    int64_t count, previous = -1;
    PyObject *result = NULL;
    if (expect("borders", nargs, 2) < 0 || read_i64(args[1], &count) < 0 ||
        PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *at = view.buf, *start = at, *end = at + view.len;
    if (check_count(count, view.len) < 0 || !(result = PyList_New((Py_ssize_t)count + 1)))
        goto failed;
    for (int64_t i = 0; i <= count; i++) {
        PyObject *number = PyLong_FromSsize_t(at - start);
        if (!number)
            goto failed;
        PyList_SET_ITEM(result, (Py_ssize_t)i, number);
        if (i < count) {
            if (next_record(&at, end, previous, &record) < 0)
                goto failed;
            previous = record.offset_delta;
        }
    }
    if (ends_here(at, end) < 0)
        goto failed;
    PyBuffer_Release(&view);
    return result;
failed:
    PyBuffer_Release(&view);
    Py_XDECREF(result);
    return NULL;
}

PyDoc_STRVAR(renumber_doc,
             "renumber(payload, count, base_offset, last_delta, wanted_offset, retime, reserve, /)\n"
             "--\n\nCopy the records from wanted_offset on with dense offset deltas behind reserve\n"
             "zero bytes. Returns (bytes, runs of offsets, highest timestamp delta).");

static PyObject *kernel_renumber(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    Record record;
    int64_t count, base, last_delta, wanted, previous = -1, kept = 0, newest = 0;
    Py_ssize_t reserve;
    int retime;
    PyObject *out = NULL, *tuple = NULL, *result = NULL;
    Runs runs = {NULL, 0, 0};
    if (expect("renumber", nargs, 7) < 0 || read_i64(args[1], &count) < 0 ||
        read_i64(args[2], &base) < 0 || read_i64(args[3], &last_delta) < 0 ||
        read_i64(args[4], &wanted) < 0 || (retime = PyObject_IsTrue(args[5])) < 0 ||
        read_size(args[6], &reserve) < 0 || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *at = view.buf, *end = at + view.len;
    if (base < 0 || last_delta < 0 || base > INT64_MAX - last_delta) {
        damaged("the offsets of the batch are impossible");
        goto done;
    }
    if (check_count(count, view.len) < 0 || !(runs.list = PyList_New(0)))
        goto done;
    /* Canonical varints of smaller offset deltas: the result is never longer than the payload. */
    if (!(out = PyByteArray_FromStringAndSize(NULL, reserve + view.len)))
        goto done;
    uint8_t *start = (uint8_t *)PyByteArray_AS_STRING(out), *write = start + reserve;
    memset(start, 0, (size_t)reserve);
    for (int64_t i = 0; i < count; i++) {
        if (next_record(&at, end, previous, &record) < 0)
            goto done;
        previous = record.offset_delta;
        if (previous > last_delta) {
            damaged_at("offset delta %lld is above the last, %lld", previous, last_delta);
            goto done;
        }
        if (base + previous < wanted)
            continue;
        if (!kept || record.timestamp_delta > newest)
            newest = record.timestamp_delta;
        if (add_run(&runs, base + previous, 1) < 0)
            goto done;
        write = write_record(write, &record, retime ? 0 : record.timestamp_delta, kept++);
    }
    if (ends_here(at, end) < 0 || PyByteArray_Resize(out, write - start) < 0 ||
        !(tuple = finish_runs(&runs)))
        goto done;
    result = Py_BuildValue("OOL", out, tuple, (long long)newest);
done:
    PyBuffer_Release(&view);
    Py_XDECREF(runs.list);
    Py_XDECREF(tuple);
    Py_XDECREF(out);
    return result;
}

/* One side of a comparison: the records of a payload from some place on. */
typedef struct {
    Py_buffer view;
    const uint8_t *at, *end;
    int64_t stamp;    /* what timestamp deltas are added to */
    int64_t previous; /* offset delta */
    int untimed;      /* all records have that timestamp */
} Side;

static int open_side(PyObject *const *args, int untimed, Side *side)
{
    Py_ssize_t position;
    if (read_size(args[1], &position) < 0 || read_i64(args[2], &side->stamp) < 0 ||
        PyObject_GetBuffer(args[0], &side->view, PyBUF_SIMPLE) < 0)
        return -1;
    side->end = (const uint8_t *)side->view.buf + side->view.len;
    side->at = position < side->view.len ? (const uint8_t *)side->view.buf + position : side->end;
    side->previous = -1;
    side->untimed = untimed;
    return 0;
}

/* Reads the next record and its timestamp; 0 where there is none that can be read. */
static inline int look_at(const Side *side, Record *record, const uint8_t **next, int64_t *stamp)
{
    *next = side->at;
    if (next_record(next, side->end, side->previous, record) < 0) {
        PyErr_Clear();
        return 0;
    }
    return !__builtin_add_overflow(side->stamp, side->untimed ? 0 : record->timestamp_delta, stamp);
}

PyDoc_STRVAR(same_doc,
             "same(one, position, stamp, other, position, stamp, count, untimed, /)\n--\n\n"
             "Count the records, at most count, that both payloads have alike from these positions on:\n"
             "timestamps, which are stamp and the delta, and all from the key on. untimed: 1 for one, 2 for\n"
             "other, 3 for both: stamp alone. Returns (count, position, position) of the first that differs\n"
             "or cannot be read.");

static PyObject *kernel_same(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Side one, other;
    Record ours, theirs;
    const uint8_t *next, *other_next;
    int64_t count, untimed, stamp, other_stamp, equal = 0;
    if (expect("same", nargs, 8) < 0 || read_i64(args[6], &count) < 0 ||
        read_i64(args[7], &untimed) < 0 || open_side(args, untimed & 1, &one) < 0)
        return NULL;
    if (open_side(args + 3, untimed >> 1 & 1, &other) < 0) {
        PyBuffer_Release(&one.view);
        return NULL;
    }
    for (; equal < count && one.at < one.end && other.at < other.end; equal++) {
        if (!look_at(&one, &ours, &next, &stamp) ||
            !look_at(&other, &theirs, &other_next, &other_stamp) || stamp != other_stamp ||
            ours.end - ours.body != theirs.end - theirs.body ||
            memcmp(ours.body, theirs.body, (size_t)(ours.end - ours.body)))
            break;
        one.at = next;
        one.previous = ours.offset_delta;
        other.at = other_next;
        other.previous = theirs.offset_delta;
    }
    const Py_ssize_t position = one.at - (const uint8_t *)one.view.buf;
    const Py_ssize_t other_position = other.at - (const uint8_t *)other.view.buf;
    PyBuffer_Release(&one.view);
    PyBuffer_Release(&other.view);
    return Py_BuildValue("Lnn", (long long)equal, position, other_position);
}

/* Names of attributes, made once. */
static PyObject *name_data, *name_runs, *name_retain;

typedef struct {
    PyObject *out;
    Py_ssize_t filled;
    Runs runs;
    int64_t base_timestamp, newest, count, in_runs;
    int parts;
    Py_ssize_t biggest;
    int codec;
} Join;

static int join_runs(Join *join, PyObject *batch)
{
    PyObject *runs = PyObject_GetAttr(batch, name_runs);
    int64_t first, count;
    int failed = 1;
    if (!runs)
        return -1;
    if (!PyTuple_Check(runs)) {
        PyErr_SetString(PyExc_TypeError, "runs must be a tuple");
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs); i++) {
        PyObject *run = PyTuple_GET_ITEM(runs, i);
        if (!PyTuple_Check(run) || PyTuple_GET_SIZE(run) != 2) {
            PyErr_SetString(PyExc_TypeError, "a run must be a pair");
            goto done;
        }
        if (read_i64(PyTuple_GET_ITEM(run, 0), &first) < 0 ||
            read_i64(PyTuple_GET_ITEM(run, 1), &count) < 0)
            goto done;
        if (count <= 0 || count > INT32_MAX || first < 0 || first > INT64_MAX - count) {
            damaged("a run of offsets is impossible");
            goto done;
        }
        if (add_run(&join->runs, first, count) < 0)
            goto done;
        join->in_runs += count;
    }
    failed = 0;
done:
    Py_DECREF(runs);
    return failed ? -1 : 0;
}

/* Adds the records of one batch, unpacked from at to end, as its header describes them. */
static int join_records(Join *join, const uint8_t *header, const uint8_t *at, const uint8_t *end)
{
    Record record;
    int64_t previous = -1, shift, stamp;
    const int64_t first = get_i64(header + 27), newest = get_i64(header + 35);
    const int64_t last_delta = get_i32(header + 23), count = get_i32(header + 57);
    const int retime = get_i16(header + ATTRIBUTES_OFFSET) & LOG_APPEND_FLAG;
    if (!join->parts++) {
        join->base_timestamp = first;
        join->newest = newest;
    }
    if (newest > join->newest)
        join->newest = newest;
    if (__builtin_sub_overflow(retime ? newest : first, join->base_timestamp, &shift))
        return damaged("a timestamp is impossible");
    if (check_count(count, end - at) < 0)
        return -1;
    if (count + join->count > INT32_MAX)
        return damaged("more records than one batch can hold");
    const Py_ssize_t most = join->filled + (end - at) + (Py_ssize_t)count * RECORD_GROWTH;
    if (most > PyByteArray_GET_SIZE(join->out) &&
        PyByteArray_Resize(join->out, join->count ? 2 * most : most) < 0)
        return -1; /* twice: the next parts are about as large, and a copy of all before them costs more */
    uint8_t *start = (uint8_t *)PyByteArray_AS_STRING(join->out), *write = start + join->filled;
    for (int64_t i = 0; i < count; i++) {
        if (next_record(&at, end, previous, &record) < 0)
            return -1;
        previous = record.offset_delta;
        if (retime)
            stamp = shift;
        else if (__builtin_add_overflow(shift, record.timestamp_delta, &stamp))
            return damaged("a timestamp is impossible");
        write = write_record(write, &record, stamp, join->count++);
    }
    join->filled = write - start;
    if (count && previous > last_delta)
        return damaged_at("offset delta %lld is above the last, %lld", previous, last_delta);
    return ends_here(at, end);
}

static int join_batch(Join *join, PyObject *batch, PyObject *open_payload)
{
    PyObject *data = PyObject_GetAttr(batch, name_data), *payload = NULL;
    Py_buffer view, inner;
    int failed = 1;
    if (!data)
        return -1;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        Py_DECREF(data);
        return -1;
    }
    const uint8_t *header = view.buf;
    if (view.len < HEADER_BYTES) {
        damaged("a batch is shorter than its header");
        goto done;
    }
    const int codec = get_i16(header + ATTRIBUTES_OFFSET) & CODEC_MASK;
    if (view.len > join->biggest) {
        join->biggest = view.len;
        join->codec = codec;
    }
    if (!codec) {
        failed = join_records(join, header, header + HEADER_BYTES, header + view.len);
    } else if ((payload = PyObject_CallOneArg(open_payload, data)) &&
               PyObject_GetBuffer(payload, &inner, PyBUF_SIMPLE) == 0) {
        const uint8_t *records = inner.buf;
        failed = join_records(join, header, records, records + inner.len);
        PyBuffer_Release(&inner);
    }
    if (!failed)
        failed = join_runs(join, batch);
done:
    PyBuffer_Release(&view);
    Py_XDECREF(payload);
    Py_DECREF(data);
    return failed ? -1 : 0;
}

/* Returns about what the joined batch takes, so that it need not grow, -1 with an exception. */
static Py_ssize_t joined_size(PyObject *batches)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(batches); i++) {
        PyObject *data = PyObject_GetAttr(PyTuple_GET_ITEM(batches, i), name_data);
        const Py_ssize_t size = data ? PyObject_Size(data) : -1;
        Py_XDECREF(data);
        if (size < 0)
            return -1;
        total += size < INT32_MAX - total ? size : INT32_MAX - total;
    }
    return total + total / JOIN_SLACK;
}

PyDoc_STRVAR(join_doc,
             "join(batches, open_payload, reserve, /)\n--\n\n"
             "Copy the records of all batches behind reserve zero bytes, with dense offset deltas and\n"
             "timestamps relative to the first batch. open_payload(data) decompresses a batch.\n"
             "Returns (bytes, runs, codec of the biggest, base timestamp, max timestamp, count).");

static PyObject *kernel_join(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Join join = {.filled = 0};
    PyObject *batches, *tuple = NULL, *result = NULL;
    Py_ssize_t reserve, size;
    if (expect("join", nargs, 3) < 0 || read_size(args[2], &reserve) < 0)
        return NULL;
    /* A tuple of our own: open_payload is Python and might change a list. */
    if (!(batches = PySequence_Tuple(args[0])))
        return NULL;
    Py_ssize_t number = PyTuple_GET_SIZE(batches);
    if (!number) {
        PyErr_SetString(PyExc_ValueError, "there is no batch to join");
        goto done;
    }
    if ((size = joined_size(batches)) < 0 || !(join.runs.list = PyList_New(0)) ||
        !(join.out = PyByteArray_FromStringAndSize(NULL, reserve + size)))
        goto done;
    memset(PyByteArray_AS_STRING(join.out), 0, (size_t)reserve);
    join.filled = reserve;
    for (Py_ssize_t i = 0; i < number; i++)
        if (join_batch(&join, PyTuple_GET_ITEM(batches, i), args[1]) < 0)
            goto done;
    if (join.count != join.in_runs) {
        damaged("the runs do not count the records");
        goto done;
    }
    if (PyByteArray_Resize(join.out, join.filled) < 0 || !(tuple = finish_runs(&join.runs)))
        goto done;
    result = Py_BuildValue("OOiLLL", join.out, tuple, join.codec, (long long)join.base_timestamp,
                           (long long)join.newest, (long long)join.count);
done:
    Py_DECREF(batches);
    Py_XDECREF(join.runs.list);
    Py_XDECREF(join.out);
    Py_XDECREF(tuple);
    return result;
}

static PyObject *cut(PyObject *view, Py_ssize_t start, Py_ssize_t stop)
{
    PyObject *low = PyLong_FromSsize_t(start), *high = PyLong_FromSsize_t(stop);
    PyObject *slice = low && high ? PySlice_New(low, high, NULL) : NULL;
    PyObject *part = slice ? PyObject_GetItem(view, slice) : NULL;
    Py_XDECREF(slice);
    Py_XDECREF(low);
    Py_XDECREF(high);
    return part;
}

static PyObject *make_runs(int64_t base, int64_t count)
{
    PyObject *run = pair(base, count), *runs = NULL;
    if (run)
        runs = PyTuple_Pack(1, run);
    Py_XDECREF(run);
    return runs;
}

/* The arguments of RecordBatch in order; all of its slots, filled without a call of __init__. */
#define SLOTS 9
static const char *const slot_names[SLOTS] = {"data",          "base_offset",   "last_offset",
                                              "count",         "max_timestamp", "leader_epoch",
                                              "attributes",    "runs",          "lease"};
static PyTypeObject *slotted; /* the class that `slots` belongs to */
static PyObject *slots[SLOTS];

/* Whether make is a plain class of exactly these slots; any other callable is called. */
static int learn_slots(PyObject *make)
{
    if (make == (PyObject *)slotted)
        return 1;
    if (!Py_IS_TYPE(make, &PyType_Type))
        return 0;
    PyTypeObject *type = (PyTypeObject *)make;
    PyObject *listed = PyDict_GetItemString(type->tp_dict, "__slots__"), *found[SLOTS];
    if (!listed || !PyTuple_Check(listed) || PyTuple_GET_SIZE(listed) != SLOTS ||
        type->tp_base != &PyBaseObject_Type || type->tp_new != PyBaseObject_Type.tp_new)
        return 0;
    for (int i = 0; i < SLOTS; i++) {
        found[i] = PyDict_GetItemString(type->tp_dict, slot_names[i]);
        if (!found[i] || !Py_IS_TYPE(found[i], &PyMemberDescr_Type))
            return 0;
    }
    Py_XDECREF(slotted);
    slotted = (PyTypeObject *)Py_NewRef(make);
    for (int i = 0; i < SLOTS; i++) {
        Py_XDECREF(slots[i]);
        slots[i] = Py_NewRef(found[i]);
    }
    return 1;
}

static PyObject *fill_slots(PyObject *const *values)
{
    PyObject *made = slotted->tp_alloc(slotted, 0);
    for (int i = 0; made && i < SLOTS; i++)
        if (Py_TYPE(slots[i])->tp_descr_set(slots[i], made, values[i]) < 0)
            Py_CLEAR(made);
    return made;
}

/* args has one free place before it, which the callee may use. */
static PyObject *call_make(PyObject *make, PyObject *const *args)
{
    if (learn_slots(make))
        return fill_slots(args);
    return PyObject_Vectorcall(make, args, SLOTS | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

/* Calls make(view, base, last, count, max_timestamp, epoch, attributes, runs, lease). */
static PyObject *make_batch(PyObject *make, PyObject *set, const uint8_t *header, Py_ssize_t start,
                            Py_ssize_t stop, PyObject *lease)
{
    const int64_t base = get_i64(header), last_delta = get_i32(header + 23);
    PyObject *made = NULL, *stack[SLOTS + 1] = {NULL}, **args = stack + 1;
    if ((args[0] = cut(set, start, stop)) && (args[1] = PyLong_FromLongLong(base)) &&
        (args[2] = PyLong_FromLongLong(base + last_delta)) &&
        (args[3] = PyLong_FromLongLong(last_delta + 1)) &&
        (args[4] = PyLong_FromLongLong(get_i64(header + 35))) &&
        (args[5] = PyLong_FromLong(get_i32(header + 12))) &&
        (args[6] = PyLong_FromLong(get_i16(header + ATTRIBUTES_OFFSET))) &&
        (args[7] = make_runs(base, last_delta + 1))) {
        args[8] = lease;
        made = call_make(make, args);
    }
    for (int i = 0; i < SLOTS - 1; i++)
        Py_XDECREF(args[i]);
    return made;
}

/* Tiny uncompressed batches that follow each other in one record set, by their positions. */
typedef struct {
    Py_ssize_t starts[GATHER_MOST];
    int number;
    int64_t bytes;
} Tiny;

/* Joins them into one RecordBatch with bytes of its own; NULL without an exception if one is damaged inside. */
static PyObject *gather(const uint8_t *set, const Tiny *tiny, PyObject *make)
{
    Join join = {.filled = HEADER_BYTES};
    PyObject *made = NULL, *stack[SLOTS + 1] = {NULL}, **args = stack + 1;
    const uint8_t *header = set + tiny->starts[0];
    const int64_t first = get_i64(header), epoch = get_i32(header + 12);
    int64_t last = first, records = 0;
    for (int i = 0; i < tiny->number; i++) {
        header = set + tiny->starts[i];
        if (check_count(get_i32(header + 57), get_i32(header + 8) + 12 - HEADER_BYTES) < 0)
            goto done;
        records += get_i32(header + 57);
    }
    if (!(join.runs.list = PyList_New(0)) ||
        !(join.out = PyByteArray_FromStringAndSize(
              NULL, HEADER_BYTES + (Py_ssize_t)(tiny->bytes + records * RECORD_GROWTH))))
        goto done;
    for (int i = 0; i < tiny->number; i++) {
        header = set + tiny->starts[i];
        const int64_t size = 12 + get_i32(header + 8), count = get_i32(header + 57);
        if (join_records(&join, header, header + HEADER_BYTES, header + size) < 0 ||
            add_run(&join.runs, get_i64(header), count) < 0)
            goto done;
        last = get_i64(header) + count - 1;
    }
    if (PyByteArray_Resize(join.out, join.filled) < 0)
        goto done;
    uint8_t *out = (uint8_t *)PyByteArray_AS_STRING(join.out);
    memset(out, 0, HEADER_BYTES); /* also the CRC: sign writes it */
    put_unsigned(out, (uint64_t)first, 8);
    put_unsigned(out + 8, (uint64_t)(join.filled - 12), 4);
    put_unsigned(out + 12, UINT32_MAX, 4);
    out[16] = 2;
    put_unsigned(out + 23, (uint64_t)(join.count - 1), 4);
    put_unsigned(out + 27, (uint64_t)join.base_timestamp, 8);
    put_unsigned(out + 35, (uint64_t)join.newest, 8);
    memset(out + 43, 0xFF, 14); /* no producer */
    put_unsigned(out + 57, (uint64_t)join.count, 4);
    args[0] = Py_NewRef(join.out);
    if ((args[1] = PyLong_FromLongLong(first)) && (args[2] = PyLong_FromLongLong(last)) &&
        (args[3] = PyLong_FromLongLong(join.count)) &&
        (args[4] = PyLong_FromLongLong(join.newest)) && (args[5] = PyLong_FromLongLong(epoch)) &&
        (args[6] = PyLong_FromLong(0)) && (args[7] = finish_runs(&join.runs))) {
        args[8] = Py_None;
        made = call_make(make, args);
    }
done:
    for (int i = 0; i < SLOTS - 1; i++)
        Py_XDECREF(args[i]);
    Py_XDECREF(join.runs.list);
    Py_XDECREF(join.out);
    if (!made && PyErr_ExceptionMatches(PyExc_ValueError))
        PyErr_Clear();
    return made;
}

static int append(PyObject *out, PyObject *batch)
{
    const int failed = !batch || PyList_Append(out, batch) < 0;
    Py_XDECREF(batch);
    return failed ? -1 : 0;
}

/* Appends one batch as it is. */
static int emit(PyObject *make, PyObject *set, const uint8_t *data, Py_ssize_t start, PyObject *lease,
                PyObject *out)
{
    const uint8_t *header = data + start;
    const Py_ssize_t stop = start + 12 + (Py_ssize_t)get_i32(header + 8);
    if (append(out, make_batch(make, set, header, start, stop, lease)) < 0)
        return -1;
    if (lease != Py_None) {
        PyObject *none = PyObject_CallMethodNoArgs(lease, name_retain);
        if (!none)
            return -1;
        Py_DECREF(none);
    }
    return 0;
}

/* Appends the tiny ones that wait, as one batch where that pays. */
static int flush(Tiny *tiny, PyObject *make, PyObject *set, const uint8_t *data, PyObject *lease,
                 PyObject *out)
{
    const int number = tiny->number;
    PyObject *joined = NULL;
    if (number >= GATHER_LEAST && !(joined = gather(data, tiny, make)) && PyErr_Occurred())
        return -1;
    tiny->number = 0;
    tiny->bytes = 0;
    if (joined)
        return append(out, joined);
    for (int i = 0; i < number; i++)
        if (emit(make, set, data, tiny->starts[i], lease, out) < 0)
            return -1;
    return 0;
}

/* Whether a batch of this producer id may be ordinary; -1 with an exception. */
static int passes(PyObject *passing, int64_t producer)
{
    if (producer < 0)
        return 1;
    PyObject *id = PyLong_FromLongLong(producer);
    const int found = id ? PySequence_Contains(passing, id) : -1;
    Py_XDECREF(id);
    return found;
}

PyDoc_STRVAR(scan_doc,
             "scan(record_set, position, wanted_offset, floor, make, lease, out, passing=None, /)\n--\n\n"
             "Append the ordinary batches from position on to out; retain lease for each that views\n"
             "record_set. Tiny uncompressed ones that follow each other become one batch. With passing, a\n"
             "batch with a producer id is ordinary only if the id is in it.\n"
             "Returns (position, floor, leader epoch of the last one or -1).");

static PyObject *kernel_scan(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer view;
    Py_ssize_t position;
    int64_t wanted, floor;
    long epoch = -1;
    if (expect("scan", nargs == 8 ? 7 : nargs, 7) < 0 || read_size(args[1], &position) < 0 ||
        read_i64(args[2], &wanted) < 0 || read_i64(args[3], &floor) < 0)
        return NULL;
    PyObject *set = args[0], *make = args[4], *lease = args[5], *out = args[6];
    PyObject *passing = nargs == 8 ? args[7] : Py_None;
    if (!PyMemoryView_Check(set) || !PyList_Check(out)) {
        PyErr_SetString(PyExc_TypeError, "scan needs a memoryview and a list");
        return NULL;
    }
    if (PyMemoryView_GET_BUFFER(set)->itemsize != 1 || PyMemoryView_GET_BUFFER(set)->ndim != 1) {
        PyErr_SetString(PyExc_TypeError, "scan needs a memoryview of bytes");
        return NULL;
    }
    if (PyObject_GetBuffer(set, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *data = view.buf;
    Tiny tiny;
    tiny.number = 0;
    tiny.bytes = 0;
    while (view.len - position >= HEADER_BYTES) {
        const uint8_t *header = data + position;
        const int64_t base = get_i64(header), length = get_i32(header + 8);
        const int64_t last_delta = get_i32(header + 23), count = get_i32(header + 57);
        const int attributes = get_i16(header + ATTRIBUTES_OFFSET);
        if (header[16] != 2 || length < HEADER_BYTES - 12 || length > view.len - position - 12 ||
            last_delta < 0 || count != last_delta + 1 || base < 0 || base < wanted || base <= floor ||
            base > INT64_MAX - last_delta || attributes & (LOG_APPEND_FLAG | CONTROL_FLAG) ||
            (attributes & CODEC_MASK) > 4)
            break;
        const int ordinary = passing == Py_None ? 1 : passes(passing, get_i64(header + 43));
        if (ordinary < 0)
            goto failed;
        if (!ordinary)
            break;
        if (crc_of(header + ATTRIBUTES_OFFSET, (size_t)(length - 9)) !=
            (uint32_t)get_unsigned(header + CRC_OFFSET, 4))
            break;
        const int64_t size = 12 + length;
        const int is_tiny = size < TINY_BYTES && !(attributes & ~TRANSACTIONAL_FLAG);
        if (tiny.number && (!is_tiny || tiny.bytes + size > GATHERED_BYTES || epoch != get_i32(header + 12)) &&
            flush(&tiny, make, set, data, lease, out) < 0)
            goto failed;
        if (is_tiny) {
            tiny.starts[tiny.number++] = position;
            tiny.bytes += size;
        } else if (emit(make, set, data, position, lease, out) < 0)
            goto failed;
        epoch = get_i32(header + 12);
        floor = base + last_delta;
        position += (Py_ssize_t)size;
    }
    if (flush(&tiny, make, set, data, lease, out) < 0)
        goto failed;
    PyBuffer_Release(&view);
    return Py_BuildValue("nLl", position, (long long)floor, epoch);
failed:
    PyBuffer_Release(&view);
    return NULL;
}

/* --- records as columns, and back ------------------------------------------------------------- */

typedef struct {
    const uint8_t *bytes;
    int64_t size; /* below 0: there is none */
} Field;

static inline const uint8_t *read_field(const uint8_t *at, const uint8_t *end, Field *out)
{
    at = read_varint(at, end, &out->size);
    if (!at || out->size > end - at)
        return NULL;
    out->bytes = at;
    return out->size > 0 ? at + out->size : at;
}

/* A column in Arrow's layout: where each value begins and ends, a bit for each that is there, and
 * the bytes of all. It is counted first, as long as there is no room. */
typedef struct {
    int64_t rows, bytes;
    PyObject *room[3]; /* ends, bits, bytes */
    int32_t *ends;
    uint8_t *bits, *data;
} Filled;

static inline void fill(Filled *column, const Field *field)
{
    const int64_t row = column->rows++, from = column->bytes;
    if (field->size > 0)
        column->bytes += field->size;
    if (!column->data)
        return;
    column->ends[row + 1] = (int32_t)column->bytes;
    if (field->size < 0)
        return;
    column->bits[row >> 3] |= (uint8_t)(1 << (row & 7));
    memcpy(column->data + from, field->bytes, (size_t)field->size);
}

static void *room_of(PyObject **out, int64_t size)
{
    if (!(*out = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size)))
        return NULL;
    return memset(PyByteArray_AS_STRING(*out), 0, (size_t)size);
}

static int make_room(Filled *column)
{
    if (column->bytes > INT32_MAX || column->rows >= INT32_MAX / 4)
        return damaged("more records than columns of 2 GiB can hold");
    column->ends = room_of(&column->room[0], 4 * (column->rows + 1));
    column->bits = column->ends ? room_of(&column->room[1], (column->rows + 7) / 8) : NULL;
    column->data = column->bits ? room_of(&column->room[2], column->bytes) : NULL;
    column->rows = column->bytes = 0;
    return column->data ? 0 : -1;
}

typedef struct {
    int64_t end, rows;
    PyObject *room[4]; /* offsets, timestamps, kinds, ends of headers */
    int64_t *offsets, *stamps;
    int32_t *kinds, *header_ends;
    Filled keys, values, names, texts;
} Columns;

static inline int64_t plus(int64_t stamp, int64_t delta)
{
    int64_t sum;
    return __builtin_add_overflow(stamp, delta, &sum) ? -1 : sum;
}

/* Adds a record, or counts it; its fields are checked also where it is left out. */
static int take_fields(Columns *columns, const Record *record, int kept)
{
    Field key = {0}, value = {0}, name = {0}, text = {0};
    int64_t headers = 0;
    const uint8_t *at = read_field(record->body, record->end, &key);
    if (at && (at = read_field(at, record->end, &value)))
        at = read_varint(at, record->end, &headers);
    for (int64_t i = 0; at && i < headers; i++) {
        if (!(at = read_field(at, record->end, &name)) || !(at = read_field(at, record->end, &text)))
            break;
        if (name.size < 0)
            name.size = 0;
        if (kept) {
            fill(&columns->names, &name);
            fill(&columns->texts, &text);
        }
    }
    if (at != record->end)
        return damaged("a record does not end where its length says");
    if (kept) {
        fill(&columns->keys, &key);
        fill(&columns->values, &value);
    }
    return 0;
}

/* The offsets of a batch that was converted from an old format, one after the other. */
static int next_in_runs(PyObject *runs, Py_ssize_t *run, int64_t *taken, int64_t *offset)
{
    long long first, count;
    while (*run < PyTuple_GET_SIZE(runs)) {
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(runs, *run), "LL", &first, &count))
            return -1;
        if (*taken < count)
            return __builtin_add_overflow(first, (*taken)++, offset) ? damaged("an offset is impossible") : 0;
        ++*run;
        *taken = 0;
    }
    return damaged("the runs do not count the records");
}

static int take_part(Columns *columns, PyObject *part)
{
    Py_buffer view;
    Record record;
    PyObject *runs;
    long long count, base, stamp, first;
    int64_t previous = -1, taken = 0, offset;
    Py_ssize_t run = 0;
    int is_append, failed = -1;
    if (!PyTuple_Check(part) || !PyArg_ParseTuple(part, "y*LLLpLO!", &view, &count, &base, &stamp,
                                                  &is_append, &first, &PyTuple_Type, &runs))
        return PyErr_Occurred() ? -1 : damaged("a part is no tuple");
    const uint8_t *at = view.buf, *end = at + view.len;
    if (check_count(count, view.len) < 0)
        goto done;
    for (int64_t i = 0; i < count; i++) {
        if (next_record(&at, end, previous, &record) < 0)
            goto done;
        previous = record.offset_delta;
        if (PyTuple_GET_SIZE(runs)) {
            if (next_in_runs(runs, &run, &taken, &offset) < 0)
                goto done;
        } else if (__builtin_add_overflow(base, previous, &offset))
            offset = -1;
        if (offset < 0) {
            damaged("an offset is impossible");
            goto done;
        }
        const int kept = first <= offset && offset < columns->end;
        if (take_fields(columns, &record, kept) < 0)
            goto done;
        if (!kept)
            continue;
        if (columns->kinds) {
            columns->offsets[columns->rows] = offset;
            columns->stamps[columns->rows] = is_append ? stamp : plus(stamp, record.timestamp_delta);
            columns->kinds[columns->rows] = is_append;
            columns->header_ends[columns->rows + 1] = (int32_t)columns->names.rows;
        }
        columns->rows++;
    }
    failed = ends_here(at, end);
done:
    PyBuffer_Release(&view);
    return failed;
}

static int columns_room(Columns *columns)
{
    if (make_room(&columns->keys) < 0 || make_room(&columns->values) < 0 ||
        make_room(&columns->names) < 0 || make_room(&columns->texts) < 0 ||
        !(columns->offsets = room_of(&columns->room[0], 8 * columns->rows)) ||
        !(columns->stamps = room_of(&columns->room[1], 8 * columns->rows)) ||
        !(columns->header_ends = room_of(&columns->room[3], 4 * (columns->rows + 1))) ||
        !(columns->kinds = room_of(&columns->room[2], 4 * columns->rows)))
        return -1;
    columns->rows = 0;
    return 0;
}

PyDoc_STRVAR(columns_doc,
             "columns(parts, end, /)\n--\n\n"
             "Return the records of all parts with offsets below end as buffers of Arrow's columns:\n"
             "offsets, timestamps, kinds, keys, values, ends of headers, their keys and values.\n"
             "A part is (payload, count, base offset, timestamp, is log append, first offset, runs).");

static PyObject *kernel_columns(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Columns columns = {.rows = 0};
    Filled *const filled[4] = {&columns.keys, &columns.values, &columns.names, &columns.texts};
    PyObject *parts, *result = NULL;
    if (expect("columns", nargs, 2) < 0 || read_i64(args[1], &columns.end) < 0 ||
        !(parts = PySequence_Tuple(args[0])))
        return NULL;
    for (int fills = 0; fills < 2; fills++) {
        if (fills && columns_room(&columns) < 0)
            goto done;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++)
            if (take_part(&columns, PyTuple_GET_ITEM(parts, i)) < 0)
                goto done;
    }
    PyObject **k = columns.keys.room, **v = columns.values.room, **n = columns.names.room,
             **t = columns.texts.room, **c = columns.room;
    result = Py_BuildValue("OOO(OOO)(OOO)O(OOO)(OOO)", c[0], c[1], c[2], k[0], k[1], k[2], v[0],
                           v[1], v[2], c[3], n[0], n[1], n[2], t[0], t[1], t[2]);
done:
    Py_DECREF(parts);
    for (int i = 0; i < 4; i++) {
        Py_XDECREF(columns.room[i]);
        for (int j = 0; j < 3; j++)
            Py_XDECREF(filled[i]->room[j]);
    }
    return result;
}

/* A column of Arrow's that is given: its buffers, and the rows of them that it has. */
typedef struct {
    Py_buffer bits, ends, data; /* bits and data may be empty */
    int64_t first, rows;
} Given;

static void close_given(Given *column)
{
    Py_buffer *const views[3] = {&column->bits, &column->ends, &column->data};
    for (int i = 0; i < 3; i++)
        if (views[i]->obj)
            PyBuffer_Release(views[i]);
}

/* Opens (bits or None, ends, bytes or None, first, rows); nothing for None. */
static int open_given(PyObject *object, Given *column)
{
    PyObject *bits, *data;
    long long first, rows;
    memset(column, 0, sizeof *column);
    column->rows = -1;
    if (object == Py_None)
        return 0;
    if (!PyTuple_Check(object) ||
        !PyArg_ParseTuple(object, "Oy*O" "LL", &bits, &column->ends, &data, &first, &rows))
        return PyErr_Occurred() ? -1 : damaged("a column is no tuple");
    if ((bits != Py_None && PyObject_GetBuffer(bits, &column->bits, PyBUF_SIMPLE) < 0) ||
        (data != Py_None && PyObject_GetBuffer(data, &column->data, PyBUF_SIMPLE) < 0))
        return -1;
    column->first = first;
    column->rows = rows;
    /* The ends may be missing where there is no row. */
    if (first < 0 || rows < 0 || first > INT32_MAX || rows > INT32_MAX ||
        (rows && column->ends.len / 4 < first + rows + 1) ||
        (column->bits.obj && column->bits.len < (first + rows + 7) / 8))
        return damaged("a column is shorter than its rows");
    return 0;
}

static inline int is_there(const Given *column, int64_t row)
{
    const uint8_t *bits = column->bits.buf;
    const int64_t at = column->first + row;
    return !bits || (bits[at >> 3] >> (at & 7) & 1);
}

/* Finds the part of the bytes, or of the values of a list, that a row has. */
static inline int span_of(const Given *column, int64_t row, int64_t most, int32_t *from, int64_t *size)
{
    int32_t ends[2];
    memcpy(ends, (const uint8_t *)column->ends.buf + 4 * (column->first + row), sizeof ends);
    *from = ends[0];
    *size = (int64_t)ends[1] - ends[0];
    return *from < 0 || *size < 0 || ends[1] > most ? damaged("a value lies outside of its column") : 0;
}

static inline int look_up(const Given *column, int64_t row, Field *out)
{
    int32_t from;
    out->size = -1;
    if (column->rows < 0)
        return 0;
    if (row < 0 || row >= column->rows)
        return damaged("a row lies outside of its column");
    if (!is_there(column, row))
        return 0;
    if (span_of(column, row, column->data.len, &from, &out->size) < 0)
        return -1;
    out->bytes = (const uint8_t *)column->data.buf + from;
    return 0;
}

static inline int64_t field_bytes(const Field *field)
{
    return varint_bytes(zigzag(field->size)) + (field->size > 0 ? field->size : 0);
}

static inline uint8_t *write_field(uint8_t *at, const Field *field)
{
    at = write_varint(at, zigzag(field->size));
    if (field->size <= 0)
        return at;
    memcpy(at, field->bytes, (size_t)field->size);
    return at + field->size;
}

typedef struct {
    Given keys, values, headers, names, texts;
} Rows;

/* Writes the record of a row at a place, or only measures it where that is NULL; -1: damaged. */
static int64_t row_record(const Rows *rows, int64_t row, int64_t delta, uint8_t *at)
{
    Field key = {0}, value = {0}, name = {0}, text = {0};
    int32_t first = 0;
    int64_t count = 0, size;
    if (row < 0 || row >= rows->values.rows)
        return damaged("a row lies outside of its column");
    if (look_up(&rows->keys, row, &key) < 0 || look_up(&rows->values, row, &value) < 0)
        return -1;
    if (row < rows->headers.rows && is_there(&rows->headers, row) &&
        span_of(&rows->headers, row, rows->names.rows, &first, &count) < 0)
        return -1;
    size = 2 + varint_bytes(zigzag(delta)) + field_bytes(&key) + field_bytes(&value) +
           varint_bytes(zigzag(count));
    for (int64_t i = 0; i < count; i++) {
        if (look_up(&rows->names, first + i, &name) < 0 || look_up(&rows->texts, first + i, &text) < 0)
            return -1;
        if (name.size < 0)
            return damaged("a header has no key");
        size += field_bytes(&name) + field_bytes(&text);
    }
    if (size > INT32_MAX / 2)
        return damaged("a record is larger than 1 GiB");
    if (at) {
        at = write_varint(at, zigzag(size));
        *at++ = 0; /* record attributes are unused */
        *at++ = 0; /* all have the timestamp of the batch */
        at = write_varint(at, zigzag(delta));
        at = write_field(write_field(at, &key), &value);
        at = write_varint(at, zigzag(count));
        for (int64_t i = 0; i < count; i++) {
            look_up(&rows->names, first + i, &name);
            look_up(&rows->texts, first + i, &text);
            at = write_field(write_field(at, &name), &text);
        }
    }
    return varint_bytes(zigzag(size)) + size;
}

PyDoc_STRVAR(pack_doc,
             "pack(order, start, limit, reserve, keys, values, headers, names, texts, /)\n--\n\n"
             "Return the records of rows as a payload behind reserve zero bytes, and how many they are:\n"
             "those that order, of uint64, names from start on, as many as limit bytes have room for,\n"
             "one at least.");

static PyObject *kernel_pack(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer order;
    Py_ssize_t start, reserve;
    Rows rows;
    Given *const given[5] = {&rows.keys, &rows.values, &rows.headers, &rows.names, &rows.texts};
    int64_t limit, count = 0, bytes = 0;
    PyObject *out = NULL, *result = NULL;
    memset(&rows, 0, sizeof rows);
    if (expect("pack", nargs, 9) < 0 || read_size(args[1], &start) < 0 ||
        read_i64(args[2], &limit) < 0 || read_size(args[3], &reserve) < 0 ||
        PyObject_GetBuffer(args[0], &order, PyBUF_SIMPLE) < 0)
        return NULL;
    for (int i = 0; i < 5; i++)
        if (open_given(args[4 + i], given[i]) < 0)
            goto done;
    const int64_t total = order.len / 8 - start;
    const uint8_t *first = (const uint8_t *)order.buf + 8 * start;
    int64_t row;
    for (; count < total; count++) {
        memcpy(&row, first + 8 * count, sizeof row);
        const int64_t size = row_record(&rows, row, count, NULL);
        if (size < 0)
            goto done;
        if (count && bytes + size > limit)
            break;
        bytes += size;
    }
    if (!(out = PyByteArray_FromStringAndSize(NULL, reserve + (Py_ssize_t)bytes)))
        goto done;
    uint8_t *at = memset(PyByteArray_AS_STRING(out), 0, (size_t)reserve);
    at += reserve;
    for (int64_t i = 0; i < count; i++) {
        memcpy(&row, first + 8 * i, sizeof row);
        at += row_record(&rows, row, i, at);
    }
    result = Py_BuildValue("OL", out, (long long)count);
done:
    for (int i = 0; i < 5; i++)
        close_given(given[i]);
    PyBuffer_Release(&order);
    Py_XDECREF(out);
    return result;
}

/* Java's Utils.murmur2. */
static uint32_t murmur2(const uint8_t *at, int64_t size)
{
    const uint32_t multiplier = 0x5BD1E995;
    uint32_t value = 0x9747B28C ^ (uint32_t)size, k;
    for (; size >= 4; at += 4, size -= 4) {
        k = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        k *= multiplier;
        k ^= k >> 24;
        value = value * multiplier ^ k * multiplier;
    }
    if (size) {
        for (int64_t i = 0; i < size; i++)
            value ^= (uint32_t)at[i] << 8 * i;
        value *= multiplier;
    }
    value ^= value >> 13;
    value *= multiplier;
    return value ^ value >> 15;
}

PyDoc_STRVAR(spread_doc, "spread(keys, partitions, /)\n--\n\n"
                         "Return for each key of a column the partition that Java's partitioner\n"
                         "chooses, as int32; -1 where there is none.");

static PyObject *kernel_spread(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Given keys;
    Field key;
    int64_t partitions;
    PyObject *out = NULL;
    if (expect("spread", nargs, 2) < 0 || read_i64(args[1], &partitions) < 0)
        return NULL;
    if (partitions < 1 || partitions > INT32_MAX) {
        damaged("a topic has at least one partition");
        return NULL;
    }
    if (open_given(args[0], &keys) < 0)
        goto failed;
    int32_t *found = room_of(&out, 4 * (keys.rows > 0 ? keys.rows : 0));
    if (!found)
        goto failed;
    for (int64_t row = 0; row < keys.rows; row++) {
        if (look_up(&keys, row, &key) < 0)
            goto failed;
        found[row] = key.size < 0 ? -1
                                  : (int32_t)((murmur2(key.bytes, key.size) & 0x7FFFFFFF) % partitions);
    }
    close_given(&keys);
    return out;
failed:
    close_given(&keys);
    Py_XDECREF(out);
    return NULL;
}

/* --- module ----------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"crc32c", kernel_crc32c, METH_O, crc32c_doc},
    {"sign", (PyCFunction)(void (*)(void))kernel_sign, METH_FASTCALL | METH_KEYWORDS, sign_doc},
    {"borders", (PyCFunction)(void (*)(void))kernel_borders, METH_FASTCALL, borders_doc},
    {"renumber", (PyCFunction)(void (*)(void))kernel_renumber, METH_FASTCALL, renumber_doc},
    {"same", (PyCFunction)(void (*)(void))kernel_same, METH_FASTCALL, same_doc},
    {"join", (PyCFunction)(void (*)(void))kernel_join, METH_FASTCALL, join_doc},
    {"scan", (PyCFunction)(void (*)(void))kernel_scan, METH_FASTCALL, scan_doc},
    {"columns", (PyCFunction)(void (*)(void))kernel_columns, METH_FASTCALL, columns_doc},
    {"pack", (PyCFunction)(void (*)(void))kernel_pack, METH_FASTCALL, pack_doc},
    {"spread", (PyCFunction)(void (*)(void))kernel_spread, METH_FASTCALL, spread_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "The hot loops of mm2py.protocol; see mm2py.protocol.kernel.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    prepare_crc();
    name_data = PyUnicode_InternFromString("data");
    name_runs = PyUnicode_InternFromString("runs");
    name_retain = PyUnicode_InternFromString("retain");
    if (!name_data || !name_runs || !name_retain)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        Py_CLEAR(module);
    return module;
}
