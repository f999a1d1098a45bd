#include "lab/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <regex>

#include "io/atomic_file.h"
#include "lab/html.h"
#include "lab/report_parts.h"

namespace faultline::lab {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kHostile = R"(a <b> & "c" 'd' </script> <img src=x onerror=alert(1)> <!--)";
constexpr double kInf = std::numeric_limits<double>::infinity();

// A run of a program whose loss breaks at the fourth step.
RunRecord run_with(double value, bool breaks) {
  RunRecord run;
  run.metrics.count("counted", value);
  run.metrics.measure(kHostile, breaks ? NAN : 0.5);
  Curve loss{std::string("loss ") + kHostile, {}, {}};
  for (int step = 1; step <= 20; ++step) {
    loss.x.push_back(step);
    loss.y.push_back(breaks && step > 3 ? NAN : 4.0 / step);
  }
  if (breaks) loss.y[9] = -kInf;
  run.metrics.add(loss);
  Grid seen{"weights", 4, 4, {}};
  for (int i = 0; i < 16; ++i) {
    const bool hidden = !breaks && i % 4 > i / 4;
    seen.values.push_back(hidden ? 0 : 1.0 / (breaks ? 4 : i / 4 + 1));
  }
  if (breaks) seen.values[5] = NAN;
  run.metrics.add(seen);
  return run;
}

// Faults with two cases each, of which every seventh case failed.
class Sample {
 public:
  explicit Sample(int cases) {
    for (int i = 0; i < cases; i += 2) add_fault(i, std::min(2, cases - i));
    for (const Fault& fault : faults_) {
      for (const Variant& variant : fault.variants()) add_result(fault, variant);
    }
  }
  std::string html() const {
    return report_html(entries_, results_, {.seed = 7, .seconds = 12.5, .date = "2026-01-02"});
  }
  CaseResult& result(size_t i) { return results_[i]; }
  const std::vector<CaseResult>& results() const { return results_; }

 private:
  void add_fault(int i, int variants) {
    FaultText text;
    text.id = "sample.fault-" + std::to_string(i);
    text.title = std::string("Fault ") + kHostile;
    text.domain = "data";
    text.seed = "003 1.2";
    text.mechanism = "1 + 1 = 3 <i>";
    text.symptom = "The loss & more.";
    text.article_says = "It is 'fine'.";
    text.truth = "It is not.";
    text.fix = "Add rightly.";
    text.sources = {"A page (2024). See https://example.org/a?b=1&c=2, and no more."};
    text.look_alikes = "Other sums.";
    text.exercise = "What is 1 + 1?";
    text.answer = "2 <b>";
    Fault& fault = faults_.emplace_back(text);
    for (int v = 0; v < variants; ++v) {
      fault.variant("v" + std::to_string(v), std::string("Case ") + kHostile)
          .expect("counted", 3)
          .expect_within(kHostile, NAN, 0.1, std::string("because ") + kHostile)
          .claimed(kHostile, nullptr)
          .caught_by("sums.add-up")
          .in_training({.steps = 40});
    }
  }
  void add_result(const Fault& fault, const Variant& variant) {
    entries_.push_back({&fault, &variant});
    CaseResult result = blank_result(fault, variant);
    result.healthy = run_with(2, false);
    result.faulty = run_with(3, true);
    result.fixed = run_with(2, false);
    result.claimed = run_with(3, true);
    result.outcome = Outcome::hides;
    result.faulty.detections = {
        {"sums.add-up", result.id, 0.9, 4, 0, kHostile, std::string("saw ") + kHostile},
        {"finite.first", "", 0.6, 5, 0, "", "nan"}};
    if (results_.size() % 7 == 3) result.why = std::string("it did not ") + kHostile;
    results_.push_back(result);
  }

  std::deque<Fault> faults_;
  std::vector<Catalogue::Entry> entries_;
  std::vector<CaseResult> results_;
};

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// The page without Vega and our script, which are no text of a case.
std::string without_scripts(const std::string& html) {
  return html.substr(0, html.find("<script>"));
}

TEST(Html, ShowsTextAsItIs) {
  EXPECT_EQ(escaped("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escaped("2 \xC2\xB7 3"), "2 \xC2\xB7 3");
  EXPECT_EQ(escaped(std::string_view("a\0b", 3)),
            "a\xEF\xBF\xBD"
            "b");
}

TEST(Html, MakesLinksOfAddressesAndOfNothingElse) {
  EXPECT_EQ(linked("see (https://a.org/x?b=1&c=2)."),
            "see (<a href=\"https://a.org/x?b=1&amp;c=2\" rel=\"noreferrer\">"
            "https://a.org/x?b=1&amp;c=2</a>).");
  EXPECT_EQ(linked("http://a.org/\"onclick=\"x"),
            "<a href=\"http://a.org/\" rel=\"noreferrer\">http://a.org/</a>&quot;onclick=&quot;x");
  EXPECT_EQ(linked("javascript:alert(1) https"), "javascript:alert(1) https");
  EXPECT_EQ(linked(""), "");
}

TEST(Report, LetsNoTextBecomeMarkup) {
  const std::string page = without_scripts(Sample(2).html());
  for (const char* markup : {"</script", "<img", "<b>", "<i>", "<!--"}) {
    EXPECT_THAT(page, Not(HasSubstr(markup)));
  }
  EXPECT_THAT(page, HasSubstr("Case a &lt;b&gt; &amp; &quot;c&quot; &#39;d&#39; &lt;/script&gt;"));
}

TEST(Report, ClosesItsScriptsOnlyWhereTheyEnd) {
  const std::string html = Sample(2).html();
  EXPECT_EQ(count(html, "<script>"), count(html, "</script>"));
  EXPECT_EQ(count(html, "<!--"), 0U);  // it would change how a script ends
}

TEST(Report, LoadsNothing) {
  const std::string page = without_scripts(Sample(2).html());
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  const std::regex loading(R"(<(link|iframe|img|object|script )|url\(|@import)");
  EXPECT_FALSE(std::regex_search(page.substr(page.find("<title>")), loading));
}

TEST(Report, HoldsAllThatIsKnownOfACase) {
  const std::string html = Sample(1).html();
  for (const char* part :
       {"1 + 1 = 3", "The loss &amp; more.", "It is &#39;fine&#39;.", "It is not.", "Add rightly.",
        "Other sums.", "What is 1 + 1?", "2 &lt;b&gt;",
        "href=\"https://example.org/a?b=1&amp;c=2\"", "article section 003 1.2",
        "within 0.1: because", "it hides the fault", "claimed: hides", "--steps 40",
        "confidence 0.9: saw", "<dd>7</dd>", "<dd>12.5</dd>", "<dd>2026-01-02</dd>"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(Report, SaysWhichNumbersAreNone) {
  const std::string html = Sample(1).html();
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">4</th><td>1</td><td>nan</td><td>1</td>"));
  EXPECT_THAT(html, HasSubstr("<td>-inf</td>"));
}

TEST(Report, ShowsWhatFailedFirstAndLoud) {
  Sample sample(50);
  const std::string html = sample.html();
  EXPECT_THAT(html, HasSubstr("43 of 50 cases verified"));
  const size_t failed = html.find("id=\"sample.fault-2\"");  // its second case is the fourth of all
  const size_t verified = html.find("id=\"sample.fault-0\"");
  ASSERT_NE(failed, std::string::npos);
  EXPECT_LT(failed, verified);
  EXPECT_LT(html.find("id=\"failed\""), html.find("class=\"matrix\""));
  EXPECT_EQ(count(html, "<h4>Failed</h4>"), 7U);
}

TEST(Report, HoldsEachCaseOnceAndLinksToIt) {
  Sample sample(50);
  const std::string html = sample.html();
  for (const CaseResult& result : sample.results()) {
    EXPECT_EQ(count(html, "id=\"" + result.full_name() + "\""), 1U) << result.full_name();
    EXPECT_GE(count(html, "href=\"#" + result.full_name() + "\""), 1U) << result.full_name();
  }
}

// The texts between `before` and `after`, in their order.
std::vector<std::string> pieces(const std::string& text, const std::string& before,
                                const std::string& after) {
  std::vector<std::string> found;
  for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at)) {
    at += before.size();
    found.push_back(text.substr(at, text.find(after, at) - at));
  }
  return found;
}

TEST(Report, MarksInTheMatrixWhoFiredInTheFaultyRun) {
  Sample sample(1);
  sample.result(0).healthy.detections = {{"finite.first", "", 0.6, 5, 0, "", "nan"}};
  const std::string html = without_scripts(sample.html());
  const auto detectors = pieces(html, "<div class=\"turned\">", "</div>");
  const std::string row = pieces(html, "<tr><th scope=\"row\">", "</tr>").at(0);
  const auto cells = pieces(row, "<td", "</td>");
  ASSERT_EQ(cells.size(), detectors.size() + 2);  // healthy and fixed come last
  for (size_t i = 0; i < detectors.size(); ++i) {
    const bool first = detectors[i] == "sums.add-up";
    const bool too = detectors[i] == "finite.first";
    EXPECT_EQ(cells[i],
              first ? "><span class=\"mark first\"></span><span class=\"spoken\">first</span>"
              : too ? "><span class=\"mark\"></span><span class=\"spoken\">too</span>"
                    : ">")
        << detectors[i];
  }
  EXPECT_EQ(cells[cells.size() - 2], " class=\"bad\">finite.first");
  EXPECT_EQ(cells.back(), " class=\"silent\">silent");
}

TEST(Report, ShowsACountToItsLastDigit) {
  Sample sample(1);
  sample.result(0).faulty.metrics.count("counted", -0x1p63);
  EXPECT_THAT(sample.html(), HasSubstr("-9223372036854775808"));
}

TEST(Report, NamesTheDetectorThatBrokeTheSilence) {
  Sample sample(1);
  EXPECT_EQ(count(sample.html(), "<td class=\"silent\">silent</td>"), 2U);
  sample.result(0).fixed.detections = {{"sums.add-up", "sample.fault-0", 0.9, 1, 0, "", ""}};
  EXPECT_THAT(sample.html(), HasSubstr("<td class=\"bad\">sums.add-up</td>"));
}

TEST(Report, TellsOfACaseThatHasNoRun) {
  Sample sample(1);
  CaseResult& result = sample.result(0);
  result.healthy = result.faulty = result.fixed = RunRecord{};
  result.claimed.reset();
  result.why = "its process crashed: Segmentation fault";
  const std::string html = sample.html();
  EXPECT_THAT(html, HasSubstr("its process crashed"));
  EXPECT_THAT(html, HasSubstr("<td class=\"bad\">no run</td>"));
  EXPECT_THAT(html, Not(HasSubstr("<figure")));
}

TEST(Report, DrawsNothingFromAnEmptyPicture) {
  Sample sample(1);
  for (RunRecord* run : {&sample.result(0).healthy, &sample.result(0).faulty}) *run = RunRecord{};
  sample.result(0).claimed.reset();
  sample.result(0).fixed = RunRecord{};
  sample.result(0).fixed.metrics.add(Curve{"empty", {}, {}});
  sample.result(0).fixed.metrics.add(Grid{"none", 0, 0, {}});
  EXPECT_THAT(sample.html(), Not(HasSubstr("<figure")));
}

TEST(Report, NamesTheAxesOfAGridAndTheirPlaces) {
  Sample sample(1);
  sample.result(0).faulty.metrics.add(
      Grid{"reported", 2, 1, {1, 0}, {"figure", {"used & kept", "dropped"}}, {"token"}});
  const std::string html = sample.html();
  EXPECT_THAT(html, HasSubstr("a row for each figure, a column for each token"));
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">used &amp; kept</th><td>1</td></tr>"));
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">dropped</th><td>0</td></tr>"));
}

TEST(Report, HasARowForEveryXOfAnyRun) {
  Sample sample(1);
  CaseResult& result = sample.result(0);
  result.claimed.reset();
  result.healthy = result.faulty = result.fixed = RunRecord{};
  result.healthy.metrics.add(Curve{"p", {1, 2, 3}, {5, 6, 7}});
  result.faulty.metrics.add(Curve{"p", {2, 2}, {8, 9}});  // twice at one place
  const std::string html = sample.html();
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">1</th><td>5</td><td></td></tr>\n"
                              "<tr><th scope=\"row\">2</th><td>6</td><td>8</td></tr>\n"
                              "<tr><th scope=\"row\">2</th><td></td><td>9</td></tr>\n"
                              "<tr><th scope=\"row\">3</th><td>7</td><td></td></tr>\n"));
}

// For tests/scripts/report_browser.py, which opens the page.
TEST(ReportWorker, WritesASample) {
  const char* file = std::getenv("REPORT_FILE");
  if (file == nullptr) GTEST_SKIP();
  write_file_atomically(file, Sample(50).html());
}

}  // namespace
}  // namespace faultline::lab
