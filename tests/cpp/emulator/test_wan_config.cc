#include <gtest/gtest.h>

#include "emulator/wan_config.h"
#include "emulator/wan_router.h"

namespace geocomm::emulator {
namespace {

using core::StatusCode;

TEST(WanConfig, ParseFullConfigurationFillsEveryField) {
  const auto config = parse_config(
      "site a\nsite b-2.x\n\nlink a b-2.x rate_bps=2.5e8 delay_ns=50000000 loss=0.001 queue_bytes=4096 up=0 "
      "reorder=0.1 duplicate=0.2 reset=0.3\n"
      "master_port 1234\ngrace_ms 250\nseed 9\nraw 1\nkeep_going 1\ncontrol /tmp/with space/x.sock\nkeys "
      "/tmp/my keys\n");
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  ASSERT_EQ(config->sites, (std::vector<std::string>{"a", "b-2.x"}));
  const LinkParams& there = config->links[1];
  EXPECT_EQ(there.rate_bps, 2.5e8);
  EXPECT_EQ(there.delay, std::chrono::milliseconds(50));
  EXPECT_EQ(there.loss, 0.001);
  EXPECT_EQ(there.queue_limit_bytes, 4096U);
  EXPECT_FALSE(there.up);
  EXPECT_EQ(there.reorder, 0.1);
  EXPECT_EQ(there.duplicate, 0.2);
  EXPECT_EQ(there.reset, 0.3);
  EXPECT_TRUE(config->links[2].up);  // the way back was not mentioned
  EXPECT_EQ(config->master_port, 1234);
  EXPECT_EQ(config->grace, std::chrono::milliseconds(250));
  EXPECT_EQ(config->seed, 9U);
  EXPECT_TRUE(config->raw);
  EXPECT_TRUE(config->keep_going);
  EXPECT_EQ(config->control_path, "/tmp/with space/x.sock");
  EXPECT_EQ(config->keys_folder, "/tmp/my keys");
}

TEST(WanConfig, ParseBadLinesAreRefused) {
  const std::string sites = "site a\nsite b\n";
  for (const std::string& text : {std::string(),
                                  std::string("site a\n"),
                                  sites + "site a\n",
                                  sites + "site c/d\n",
                                  sites + "site -c\n",
                                  sites + "site " + std::string(65, 'x') + "\n",
                                  sites + "link a b\nsite c\n",
                                  sites + "link a a up=1\n",
                                  sites + "link a c up=1\n",
                                  sites + "link a\n",
                                  sites + "link a b rate=1\n",
                                  sites + "link a b rate_bps\n",
                                  sites + "link a b rate_bps=\n",
                                  sites + "link a b rate_bps=1x\n",
                                  sites + "link a b rate_bps=-5\n",
                                  sites + "link a b loss=2\n",
                                  sites + "link a b up=yes\n",
                                  sites + "link a b reset=2\n",
                                  sites + "link a b queue_bytes=-1\n",
                                  sites + "master_port 65536\n",
                                  sites + "master_port\n",
                                  sites + "raw 2\n",
                                  sites + "grace_ms 5 6\n",
                                  sites + "control " + std::string(108, 'p') + "\n",
                                  sites + "surprise 1\n"}) {
    const auto config = parse_config(text);
    ASSERT_FALSE(config.is_ok()) << text;
    EXPECT_EQ(config.status().code(), StatusCode::InvalidArgument) << text;
  }
}

TEST(WanConfig, ParseTooManySitesIsRefused) {
  std::string text;
  for (std::size_t i = 0; i < kMaxSites; ++i) text += "site s" + std::to_string(i) + "\n";
  EXPECT_TRUE(parse_config(text).is_ok());
  EXPECT_FALSE(parse_config(text + "site more\n").is_ok());
}

TEST(WanConfig, ApplyLinkWordsOnErrorChangesNothing) {
  LinkParams params;
  EXPECT_FALSE(apply_link_words({"rate_bps=5e6", "loss=7"}, params).is_ok());
  EXPECT_EQ(params.rate_bps, LinkParams{}.rate_bps);
  EXPECT_TRUE(apply_link_words({"rate_bps=5e6", "loss=0.5"}, params).is_ok());
  EXPECT_EQ(params.rate_bps, 5e6);
  EXPECT_EQ(params.loss, 0.5);
}

TEST(WanRouterAddress, SiteOfAddressInvertsSiteAddress) {
  for (std::size_t site = 0; site < kMaxSites; ++site) {
    EXPECT_EQ(site_of_address(site_address(site), kMaxSites), site);
  }
  EXPECT_EQ(site_of_address(site_address(2), 2), std::nullopt);
  EXPECT_EQ(site_of_address(0x0a5c0001, 2), std::nullopt);  // 10.92.0.1
  EXPECT_EQ(site_of_address(0xe0000001, 2), std::nullopt);  // multicast
}

}  // namespace
}  // namespace geocomm::emulator
