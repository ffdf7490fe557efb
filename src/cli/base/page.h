/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that fits the page: how wide it is, and paragraphs laid out in it. Widths count characters, not bytes, since
 * names and formulas are UTF-8.
 */
#ifndef PITH_CLI_PAGE_H
#define PITH_CLI_PAGE_H

#include <stddef.h>
#include <stdio.h>

enum { CLI_PAGE_WIDTH = 100 };

/* Columns of a page on this stream: CLI_PAGE_WIDTH, or fewer where the stream is a narrower terminal. */
size_t cli_page_width(FILE *file);

/* Characters of a UTF-8 text, and of its first bytes. */
size_t cli_text_width(const char *text);
size_t cli_bytes_width(const char *text, size_t size);

/* Prints `text` and as many blanks as fill it up to `width` characters. */
void cli_pad(FILE *file, const char *text, size_t width);

/* Prints one paragraph: `first`, then the text, broken at blanks; later lines begin with `rest`. A word that is longer
 * than a line, such as a path, stays whole. */
void cli_paragraph(FILE *file, const char *first, const char *rest, const char *text);

/* The same with a format; its lines after the first are indented as far as `first` reaches. */
void cli_say(FILE *file, const char *first, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Several paragraphs, separated by empty lines. A line that begins with a blank is an example and stays as it is. */
void cli_paragraphs(FILE *file, const char *text);

#endif
