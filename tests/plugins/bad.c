/* SPDX-License-Identifier: Apache-2.0 */
/* A plug-in with one flaw, chosen by a macro: each must be refused with a sentence, and leave nothing behind. */
#include <pith/plugin.h>

static const pith_param params[] = {{.key = NULL}};

static size_t block(const pith_value *a) { return (void)a, 64; }

static size_t block_bound(const pith_value *a, size_t n) { return (void)a, n; }

static size_t encode_block(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                           const pith_ctx *ctx) {
  (void)a, (void)x, (void)out, (void)index, (void)ctx;
  return n;
}

static void decode_block(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                         const pith_ctx *ctx) {
  (void)a, (void)in, (void)n, (void)dst, (void)mode, (void)index, (void)ctx;
}

#define CODEC(codec_name, id)                 \
  {.size = sizeof(pith_codec_ops),            \
   .name = codec_name,                        \
   .family = "test",                          \
   .summary = "none",                         \
   .bits = "8",                               \
   .wire_id = id,                             \
   .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED, \
   .params = params,                          \
   .block = block,                            \
   .block_bound = block_bound,                \
   .encode_block = encode_block,              \
   .decode_block = decode_block}

static pith_codec_ops good = CODEC("fine", 0x8100), flawed = CODEC("flawed", 0x8101);

static const pith_codec_ops *const codecs[] = {&good, &flawed};

static pith_plugin plugin = {.size = sizeof(pith_plugin),
                             .abi = PITH_PLUGIN_ABI,
                             .name = "bad",
                             .version = "1",
                             .codecs = codecs,
                             .codec_count = 2};

#ifdef BAD_ENTRY
#define pith_plugin_entry pith_plugin_entrance
#endif

PITH_API const pith_plugin *pith_plugin_entry(void);

const pith_plugin *pith_plugin_entry(void) {
#if defined(BAD_ABI)
  plugin.abi++;
#elif defined(BAD_SIZE)
  flawed.size = offsetof(pith_codec_ops, use); /* the last field that must be there is missing */
#elif defined(BAD_VERSION)
  plugin.version = NULL;
#elif defined(BAD_EMPTY)
  plugin.codec_count = 0;
#elif defined(BAD_SECOND)
  flawed.name = "q";
#endif
  return &plugin;
}
