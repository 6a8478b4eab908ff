/* SVG by hand: rectangles, lines and text, nothing that needs a library or a
 * font file. Colours are set once in the style, with a dark variant; the panel
 * has its own ground, so the chart reads on pages of either kind. All text goes
 * through put_text, which escapes it. */
#include "chart.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

enum {
    WIDTH = 1220,
    MARGIN = 24,
    HEAD = 92, /* title, machine, legend */
    ROW = 18,
    GROUP = 30,  /* an operator's heading */
    LABEL = 470, /* where bars start */
    BAR = 420,   /* 100 % */
    PLOT_HEIGHT = 380,
    PLOT_LEFT = 90,
    PLOT_RIGHT = 300, /* room for the ceilings' names */
    COLOURS = 8
};

static const char style[] =
    "<style>"
    "text{font:12px system-ui,sans-serif;fill:#24292f}"
    ".ground{fill:#fbfbfa}.title{font-size:18px;font-weight:600}.op{font-weight:600}.soft{fill:#667079}"
    ".grid{stroke:#d5d8dc;stroke-width:1}.track{fill:#e9ebed}.line{stroke:#24292f;stroke-width:1.5;fill:none}"
    ".dash{stroke-dasharray:6 4}"
    ".c0{fill:#2f78c4}.c1{fill:#2f9e72}.c2{fill:#c9742b}.c3{fill:#a44fae}.c4{fill:#c0474f}.c5{fill:#8a8f2d}"
    ".c6{fill:#2c98a8}.c7{fill:#7a6fd0}.dot{fill-opacity:.8}.mono{font-family:ui-monospace,monospace;font-size:11px}"
    "@media (prefers-color-scheme:dark){text{fill:#e3e6ea}.ground{fill:#16191d}.soft{fill:#98a2ad}"
    ".grid{stroke:#343a41}.track{fill:#262b31}.line{stroke:#e3e6ea}}"
    "</style>\n";

/* Characters that XML allows, the special ones as entities. */
static void put_text(FILE *out, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0, n = strlen(text); i < n;) {
        const int length = cli_utf8_length(s + i, n - i);
        if (length <= 0 || (length == 1 && (s[i] < 0x20 || s[i] == 0x7F))) {
            fputc('?', out);
            i++;
            continue;
        }
        switch (s[i]) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&apos;", out); break;
        default: fwrite(s + i, 1, (size_t)length, out);
        }
        i += (size_t)length;
    }
}

__attribute__((format(printf, 6, 7))) static void label(FILE *out, double x, double y, const char *kind,
                                                        const char *anchor, const char *format, ...)
{
    char text[768];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y, kind, anchor);
    put_text(out, text);
    fputs("</text>\n", out);
}

static void line(FILE *out, const char *kind, double x1, double y1, double x2, double y2)
{
    fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", kind, x1, y1, x2, y2);
}

static void box(FILE *out, const char *kind, double x, double y, double width, double height)
{
    fprintf(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\"/>\n", kind, x, y,
            width, height);
}

static int is_memory(const char *ceiling)
{
    return strcmp(ceiling, "read") == 0 || strcmp(ceiling, "copy") == 0;
}

static const char *unit_of(const char *ceiling)
{
    return is_memory(ceiling) ? "GB/s" : "GFLOP/s";
}

static const char *time_text(char text[32], double us)
{
    if (us < 1000)
        snprintf(text, 32, "%.3g \xC2\xB5s", us);
    else
        snprintf(text, 32, "%.3g %s", us < 1e6 ? us / 1e3 : us / 1e6, us < 1e6 ? "ms" : "s");
    return text;
}

/* ---- Bars ---- */

static const char *const rooflines[] = {"read",     "copy",      "fp32_fma",  "bf16_dot",
                                        "int8_dot", "bf16_tile", "int8_tile", NULL};

static int colour_of(const char *roofline)
{
    int i = 0;
    while (roofline && rooflines[i] && strcmp(rooflines[i], roofline) != 0)
        i++;
    return i % COLOURS;
}

/* A new operator starts at record i (records of one operator may lie apart in the case table). */
static int first_of_its_op(const bench_record *records, int i)
{
    for (int j = 0; j < i; j++)
        if (records[j].op == records[i].op)
            return 0;
    return 1;
}

static void bar(FILE *out, double y, const bench_record *r)
{
    const char *sizes = strchr(r->text, ' ');
    char time[32], kind[8];
    const double percent = r->percent < 100 ? r->percent : 100;
    snprintf(kind, sizeof kind, "c%d", colour_of(r->roofline));
    label(out, LABEL - 8, y + 12.5, "mono", "end", "%.66s", sizes ? sizes + 1 : r->text);
    box(out, "track", LABEL, y + 3, BAR, ROW - 6);
    box(out, kind, LABEL, y + 3, BAR * percent / 100, ROW - 6);
    if (r->roofline)
        label(out, LABEL + BAR + 8, y + 12.5, "mono", "start", "%5.1f %%%s of %s %.4g %s, %s", r->percent,
              r->percent > 100 ? "!" : "", r->roofline, r->roofline_value, unit_of(r->roofline),
              time_text(time, r->median));
    else
        label(out, LABEL + BAR + 8, y + 12.5, "mono", "start", "no ceiling measured, %s", time_text(time, r->median));
}

static double bars_height(const bench_record *records, int count)
{
    double height = 0;
    for (int i = 0; i < count; i++)
        height += ROW + (first_of_its_op(records, i) ? GROUP : 0);
    return height;
}

static double bars(FILE *out, double y, const bench_record *records, int count)
{
    const double bottom = y + bars_height(records, count);
    for (int percent = 0; percent <= 100; percent += 25) {
        const double x = LABEL + BAR * percent / 100.0;
        line(out, "grid", x, y + 8, x, bottom);
        label(out, x, y + 4, "soft", "middle", "%d %%", percent);
    }
    for (int i = 0; i < count; i++) {
        if (!first_of_its_op(records, i))
            continue;
        label(out, MARGIN, y + GROUP - 8, "op", "start", "%s", qn_op_get_info(records[i].op)->name);
        y += GROUP;
        for (int j = i; j < count; j++) {
            if (records[j].op != records[i].op)
                continue;
            bar(out, y, &records[j]);
            y += ROW;
        }
    }
    return y;
}

static void legend(FILE *out, double y, const bench_record *records, int count)
{
    double x = MARGIN;
    for (int i = 0; rooflines[i]; i++) {
        int used = 0;
        for (int j = 0; j < count; j++)
            used += records[j].roofline && strcmp(records[j].roofline, rooflines[i]) == 0;
        if (!used)
            continue;
        char kind[8];
        snprintf(kind, sizeof kind, "c%d", colour_of(rooflines[i]));
        box(out, kind, x, y - 10, 12, 12);
        label(out, x + 18, y, "soft", "start", "%s", rooflines[i]);
        x += 100;
    }
}

/* ---- The roofline plot: both axes logarithmic ---- */

typedef struct plot {
    double x0, x1, y0, y1; /* log10 of the ends of the axes */
    double left, top, width, height;
} plot;

static double plot_x(const plot *p, double value)
{
    return p->left + p->width * (log10(value) - p->x0) / (p->x1 - p->x0);
}

static double plot_y(const plot *p, double value)
{
    return p->top + p->height * (1 - (log10(value) - p->y0) / (p->y1 - p->y0));
}

static int plotted(const bench_record *r)
{
    return r->bytes > 0 && r->flops > 0 && r->gflops > 0;
}

/* Axes that hold every case and every ceiling. */
static plot make_plot(double top, const bench_record *records, int count, const bench_ceiling *ceilings, int n)
{
    double x0 = 1e3, x1 = 1e-3, y0 = 1e9, y1 = 1e-9;
    for (int i = 0; i < count; i++) {
        if (!plotted(&records[i]))
            continue;
        x0 = fmin(x0, records[i].flops / records[i].bytes);
        x1 = fmax(x1, records[i].flops / records[i].bytes);
        y0 = fmin(y0, records[i].gflops);
        y1 = fmax(y1, records[i].gflops);
    }
    for (int i = 0; i < n; i++)
        if (ceilings[i].best > 0 && !is_memory(ceilings[i].name))
            y1 = fmax(y1, 1.5 * ceilings[i].best);
    plot p = {floor(log10(x0)),
              ceil(log10(x1)),
              floor(log10(y0)),
              ceil(log10(y1 * 1.05)),
              PLOT_LEFT,
              top,
              WIDTH - PLOT_LEFT - PLOT_RIGHT,
              PLOT_HEIGHT};
    p.x1 = fmax(p.x1, p.x0 + 1);
    p.y1 = fmax(p.y1, p.y0 + 1);
    return p;
}

static void axes(FILE *out, const plot *p)
{
    for (double e = p->x0; e <= p->x1; e++) {
        const double x = plot_x(p, pow(10, e));
        line(out, "grid", x, p->top, x, p->top + p->height);
        label(out, x, p->top + p->height + 16, "soft", "middle", "%g", pow(10, e));
    }
    for (double e = p->y0; e <= p->y1; e++) {
        const double y = plot_y(p, pow(10, e));
        line(out, "grid", p->left, y, p->left + p->width, y);
        label(out, p->left - 8, y + 4, "soft", "end", "%g", pow(10, e));
    }
    label(out, p->left + p->width / 2, p->top + p->height + 34, "soft", "middle", "operations a byte");
    label(out, p->left, p->top - 10, "soft", "start", "GFLOP/s");
}

/* Of one name the highest is drawn: kernels of lower levels stand beside their own ceiling in the bars. */
static int is_highest(const bench_ceiling *ceilings, int n, int i)
{
    for (int j = 0; j < n; j++)
        if (j != i && strcmp(ceilings[j].name, ceilings[i].name) == 0 &&
            (ceilings[j].best > ceilings[i].best || (ceilings[j].best == ceilings[i].best && j < i)))
            return 0;
    return ceilings[i].best > 0;
}

/* Arithmetic ceilings are level; a memory ceiling rises with the operations a byte (copy: dashed). Either is cut at the
 * frame and named to the right of it. */
static void ceiling_lines(FILE *out, const plot *p, const bench_ceiling *ceilings, int n)
{
    const double right = p->left + p->width;
    double named = p->top - 16;
    for (int i = 0; i < n; i++) {
        const bench_ceiling *k = &ceilings[i];
        if (!is_highest(ceilings, n, i))
            continue;
        if (is_memory(k->name)) {
            const double low = fmax(pow(10, p->x0), pow(10, p->y0) / k->best);
            const double high = fmin(pow(10, p->x1), pow(10, p->y1) / k->best);
            const int dashed = strcmp(k->name, "copy") == 0;
            if (low >= high)
                continue;
            line(out, dashed ? "line dash" : "line", plot_x(p, low), plot_y(p, low * k->best), plot_x(p, high),
                 plot_y(p, high * k->best));
            label(out, right + 8, named, "mono", "start", "%s %.4g GB/s%s", k->name, k->best,
                  dashed ? " (dashed)" : "");
            named += 14;
        } else if (k->best >= pow(10, p->y0)) {
            const double y = plot_y(p, k->best);
            line(out, "line", p->left, y, right, y);
            label(out, right + 8, y + 4, "mono", "start", "%s %.4g GFLOP/s, %s", k->name, k->best,
                  qn_isa_name(k->level));
        }
    }
}

static void dots(FILE *out, const plot *p, const bench_record *records, int count)
{
    for (int i = 0; i < count; i++) {
        const bench_record *r = &records[i];
        if (!plotted(r))
            continue;
        fprintf(out, "<circle class=\"c%d dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", colour_of(r->roofline),
                plot_x(p, r->flops / r->bytes), plot_y(p, r->gflops));
        char title[640];
        snprintf(title, sizeof title, "%s: %.4g GFLOP/s, %.1f %% of %s", r->text, r->gflops, r->percent,
                 r->roofline ? r->roofline : "-");
        put_text(out, title);
        fputs("</title></circle>\n", out);
    }
}

void chart_write(FILE *out, const char *subtitle, const bench_record *records, int count, const bench_ceiling *ceilings,
                 int ceiling_count)
{
    const double bars_top = HEAD + 20, plot_top = bars_top + bars_height(records, count) + 80;
    const double height = plot_top + PLOT_HEIGHT + 60;
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" "
            "height=\"%.0f\" viewBox=\"0 0 %d %.0f\">\n",
            WIDTH, height, WIDTH, height);
    fputs(style, out);
    fprintf(out, "<rect class=\"ground\" width=\"%d\" height=\"%.0f\" rx=\"6\"/>\n", WIDTH, height);
    label(out, MARGIN, 34, "title", "start", "Percent of the roofline, %d case%s", count, count == 1 ? "" : "s");
    label(out, MARGIN, 56, "soft", "start", "%s", subtitle);
    legend(out, 80, records, count);
    bars(out, bars_top, records, count);
    const plot p = make_plot(plot_top, records, count, ceilings, ceiling_count);
    label(out, MARGIN, plot_top - 34, "op", "start",
          "Roofline: what each case reaches, below what this machine can do");
    axes(out, &p);
    ceiling_lines(out, &p, ceilings, ceiling_count);
    dots(out, &p, records, count);
    fputs("</svg>\n", out);
}
