/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 and HMAC against the vectors of FIPS 180-4 and RFC 4231. */
#include "base/sha256.h"

#include <stdio.h>
#include <string.h>

#include "test.h"

static const char *hex(const uint8_t digest[PITH_SHA256_SIZE]) {
  static char text[2 * PITH_SHA256_SIZE + 1];
  for (int i = 0; i < PITH_SHA256_SIZE; i++) {
    snprintf(text + 2 * i, 3, "%02x", digest[i]);
  }
  return text;
}

static const char *sha256_of(const void *data, size_t size) {
  uint8_t digest[PITH_SHA256_SIZE];
  pith_sha256 hash;
  pith__sha256_init(&hash);
  pith__sha256_add(&hash, data, size);
  pith__sha256_finish(&hash, digest);
  return hex(digest);
}

static const char *hmac_of(const void *key, size_t key_size, const char *text) {
  uint8_t digest[PITH_SHA256_SIZE];
  pith_hmac mac;
  pith__hmac_init(&mac, key, key_size);
  pith__hmac_add(&mac, text, strlen(text));
  pith__hmac_finish(&mac, digest);
  return hex(digest);
}

TEST(short_texts_have_the_published_digests) {
  CHECK_STR(sha256_of("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_STR(sha256_of("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  CHECK_STR(sha256_of(two_blocks, 56), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(a_million_letters_have_the_published_digest) {
  static char letters[1000000];
  memset(letters, 'a', sizeof letters);
  CHECK_STR(sha256_of(letters, sizeof letters), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(pieces_do_not_change_the_digest) {
  uint8_t data[300], digest[PITH_SHA256_SIZE];
  for (int round = 0; round < 200; round++) {
    size_t size = test_below(sizeof data + 1), at = 0;
    for (size_t i = 0; i < size; i++) {
      data[i] = (uint8_t)test_random();
    }
    pith_sha256 hash;
    pith__sha256_init(&hash);
    while (at < size) {
      size_t part = test_below(size - at) + 1;
      pith__sha256_add(&hash, data + at, part);
      at += part;
    }
    pith__sha256_finish(&hash, digest);
    char pieces[2 * PITH_SHA256_SIZE + 1];
    snprintf(pieces, sizeof pieces, "%s", hex(digest));
    CHECK_STR(sha256_of(data, size), pieces);
  }
}

TEST(keyed_digests_are_the_published_ones) {
  uint8_t key[131];
  memset(key, 0x0b, 20);
  CHECK_STR(hmac_of(key, 20, "Hi There"), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_STR(hmac_of("Jefe", 4, "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  memset(key, 0xaa, sizeof key);
  CHECK_STR(hmac_of(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(equality_sees_every_bit) {
  uint8_t a[PITH_SHA256_SIZE] = {0}, b[PITH_SHA256_SIZE] = {0};
  CHECK(pith__digest_equal(a, b));
  for (int bit = 0; bit < 8 * PITH_SHA256_SIZE; bit++) {
    b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    CHECK(!pith__digest_equal(a, b));
    b[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
}
